"""Reads and writes safetensors files independently of the program."""

import json
import struct

import torch

KINDS = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "U8": torch.uint8}
NAMES = {kind: name for name, kind in KINDS.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().numpy().tobytes()
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """Returns (tensors by name, metadata)."""
    content = path.read_bytes()
    length, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, finish = entry["data_offsets"]
        assert begin == end
        end = finish
        data = bytearray(content[8 + length + begin:8 + length + finish])
        tensors[name] = torch.frombuffer(data, dtype=KINDS[entry["dtype"]]).reshape(entry["shape"])
    assert 8 + length + end == len(content)
    return tensors, metadata
