"""Reads and writes safetensors files independently of the program."""

import json
import struct

import numpy

KINDS = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1"}
NAMES = {numpy.dtype(kind): name for name, kind in KINDS.items()}


def write_safetensors(path, tensors):
    """Writes arrays, or tensors of PyTorch on the CPU."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        array = numpy.asarray(tensor)
        content = array.tobytes()
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """Returns (arrays by name, metadata)."""
    content = path.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, finish = entry["data_offsets"]
        assert begin == end
        end = finish
        data = bytearray(content[8 + length + begin:8 + length + finish])  # writable, for torch.as_tensor
        tensors[name] = numpy.frombuffer(data, KINDS[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + length + end == len(content)
    return tensors, metadata
