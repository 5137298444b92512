"""Reads TensorBoard's event files independently of the program and of TensorBoard."""

import struct

import pytest

protobuf = pytest.importorskip("google.protobuf.unknown_fields", reason="protobuf is not installed; scripts/test installs it")
from google.protobuf.empty_pb2 import Empty  # noqa: E402

POLYNOMIAL = 0x82F63B78
TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    TABLE.append(byte)


def masked_crc(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(content):
    """Yields the records of a file; asserts that checksums are valid and no bytes are left over."""
    at = 0
    while at < len(content):
        header = content[at:at + 8]
        (length,), (crc,) = struct.unpack("<Q", header), struct.unpack("<I", content[at + 8:at + 12])
        assert crc == masked_crc(header)
        record = content[at + 12:at + 12 + length]
        assert len(record) == length
        (crc,) = struct.unpack("<I", content[at + 12 + length:at + 16 + length])
        assert crc == masked_crc(record)
        yield record
        at += 16 + length


def fields(content):
    """Returns the fields of a protobuf message as a dict from field number to a list of undecoded values."""
    found = {}
    for field in protobuf.UnknownFieldSet(Empty.FromString(content)):
        size = {1: 8, 5: 4}.get(field.wire_type)
        found.setdefault(field.field_number, []).append(field.data.to_bytes(size, "little") if size else field.data)
    return found


def doubles(content):
    return list(struct.unpack(f"<{len(content) // 8}d", content))


def value_of(value):
    """Returns (kind, content) of a summary value: ("scalar", number), ("histogram", dict)."""
    if 2 in value:
        return "scalar", struct.unpack("<f", value[2][0])[0]
    histogram = fields(value[5][0])
    names = ("min", "max", "num", "sum", "sum_squares")
    numbers = {name: doubles(histogram[i + 1][0])[0] for i, name in enumerate(names)}
    return "histogram", numbers | {"limits": doubles(histogram[6][0]), "counts": doubles(histogram[7][0])}


def read_events(path):
    """Returns (tag, kind, step, value) of all values in a file, in file order."""
    events = [fields(record) for record in records(path.read_bytes())]
    assert events[0][3] == [b"brain.Event:2"]
    found = []
    for event in events[1:]:
        step = event.get(2, [0])[0]
        for value in fields(event[5][0])[1]:
            value = fields(value)
            kind, content = value_of(value)
            found.append((value[1][0].decode(), kind, step, content))
    return found


def events_of(folder):
    (path,) = folder.glob("events.out.tfevents.*")
    return read_events(path)
