"""Images in all supported formats decode and resize to the same pixels as in Pillow and torchvision."""

import io
import itertools
import random
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from support import BINARY

PROGRAM = Path(BINARY).with_name("mnist-train-picture")


def photo(mode, width, height, seed=0):
    """Returns a smooth image with some noise and, if the mode has alpha, all alpha values."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [120 + 90 * np.sin((x * (i + 1) + 7 * seed) / 9.0) + 40 * np.cos(y / (5.0 + i)) + rng.normal(0, 6, x.shape) for i in range(3)]
    rgb = Image.fromarray(np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8))
    if mode in ("RGB", "L", "CMYK", "1"):
        return rgb.convert(mode)
    if mode == "P":
        return rgb.quantize(37)
    alpha = Image.fromarray(((x * 13 + y * 29 + seed) % 256).astype(np.uint8))
    picture = rgb.convert("L" if mode == "LA" else "RGB")
    picture.putalpha(alpha)
    return picture


TIFF_TYPES = ((1, "B"), (2, "B"), (3, "H"), (4, "L"), (6, "b"), (7, "B"), (8, "h"), (9, "l"), (13, "L"), (16, "Q"), (17, "Q"))


def orientation(value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def xmp(value):
    return f'<x:xmpmeta><rdf:Description tiff:Orientation="{value}"/></x:xmpmeta>'.encode()


def saved(picture, kind, **options):
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def with_chunk(png, name, content):
    """Returns the PNG with an additional chunk after the header."""
    return png[:33] + chunk(name, content) + png[33:]


def raw_png(width, height, depth, kind, rows, chunks=(), interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlace)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    body = b"".join(chunk(*each) for each in chunks)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def interlaced_png(picture):
    """Returns a PNG with Adam7 interlacing, which Pillow can read but not write."""
    pixels = np.asarray(picture)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    rows = []
    for x0, y0, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]:
        part = pixels[y0::dy, x0::dx]
        if part.size:
            rows += [row.tobytes() for row in part]
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[pixels.shape[2]]
    return raw_png(picture.width, picture.height, 8, kind, rows, interlace=1)


def pngs():
    for mode, (width, height) in itertools.product(("RGB", "L", "P", "1", "RGBA", "LA"), ((1, 1), (17, 9), (64, 33))):
        yield f"{mode}-{width}x{height}.png", saved(photo(mode, width, height), "PNG")
    for mode in ("RGB", "L", "RGBA", "LA"):
        yield f"interlaced-{mode}.png", interlaced_png(photo(mode, 21, 13))
        for gamma in (1.0, 0.45455, 2.2):
            png = saved(photo(mode, 20, 12), "PNG")
            yield f"gamma-{gamma}-{mode}.png", with_chunk(png, b"gAMA", struct.pack(">I", round(gamma * 100000)))
    yield "srgb.png", with_chunk(saved(photo("RGB", 20, 12), "PNG"), b"sRGB", b"\0")
    yield "chrm.png", with_chunk(saved(photo("RGB", 20, 12), "PNG"), b"cHRM", struct.pack(">8I", *range(1000, 9000, 1000)))
    for bits in (1, 2, 4, 8):
        yield f"palette-{bits}.png", saved(photo("RGB", 30, 11).quantize(2**bits), "PNG", bits=bits)
        rows = [bytes((37 * y + x) % 256 for x in range((19 * bits + 7) // 8)) for y in range(7)]
        yield f"gray-{bits}.png", raw_png(19, 7, bits, 0, rows)
    yield "palette-alpha.png", saved(photo("RGBA", 40, 30).quantize(23), "PNG")
    yield "palette-key.png", saved(photo("P", 30, 30), "PNG", transparency=3)
    yield "palette-alphas.png", saved(photo("P", 30, 30), "PNG", transparency=bytes(range(0, 222, 6)))
    yield "rgb-key.png", saved(photo("RGB", 30, 30), "PNG", transparency=photo("RGB", 30, 30).getpixel((3, 3)))
    yield "gray-key.png", saved(photo("L", 30, 30), "PNG", transparency=photo("L", 30, 30).getpixel((3, 3)))
    yield "bit-key.png", saved(photo("1", 30, 30), "PNG", transparency=0)
    values = np.random.default_rng(1).integers(0, 65536, (9, 14, 4))
    for channels, kind in ((3, 2), (4, 6), (2, 4)):
        rows = [row.astype(">u2").tobytes() for row in values[:, :, :channels]]
        yield f"deep-{channels}.png", raw_png(14, 9, 16, kind, rows)
    for value in range(1, 9):
        yield f"exif-{value}.png", saved(photo("RGBA", 12, 7, value), "PNG", exif=orientation(value))
        info = PngImagePlugin.PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp(value).decode())
        yield f"xmp-{value}.png", saved(photo("L", 12, 7, value), "PNG", pnginfo=info)
    rows = [row.tobytes() for row in np.asarray(photo("L", 12, 7))]
    for name, chunks in png_texts():
        yield f"{name}.png", raw_png(12, 7, 8, 0, rows, chunks)


def typed_orientation(order, kind, code, *values):
    """Returns EXIF whose orientation has a TIFF type and, if `values` needs more than 4 bytes, an offset."""
    data = struct.pack(f"{order}{len(values)}{code}", *values)
    head = struct.pack(order + "2sHLHHHL", b"II" if order == "<" else b"MM", 42, 8, 1, 0x0112, kind, len(values))
    return b"Exif\0\0" + head + (data.ljust(4, b"\0") if len(data) <= 4 else struct.pack(order + "L", 26)) + bytes(4) + data


def raw_profile(value, lines=True, prefix=b"Exif\0\0"):
    """Returns EXIF as ImageMagick and exiftool write it into PNG text chunks."""
    content = prefix + orientation(value).tobytes().removeprefix(b"Exif\0\0")
    digits = content.hex()
    digits = "\n".join(digits[at : at + 72] for at in range(0, len(digits), 72)) if lines else digits
    return b"\nexif\n%8d\n%s\n" % (len(content), digits.encode())


def png_texts():
    """Yields the text chunks of PNGs from which Pillow takes the orientation."""
    key, xmp_key = b"Raw profile type exif\0", b"XML:com.adobe.xmp\0"
    for value in range(1, 9):
        yield f"profile-{value}", [(b"tEXt", key + raw_profile(value))]
        yield f"packed-profile-{value}", [(b"zTXt", key + b"\0" + zlib.compress(raw_profile(value)))]
    yield "profile-tiff", [(b"tEXt", key + raw_profile(6, prefix=b""))]
    yield "profile-one-line", [(b"tEXt", key + raw_profile(6, lines=False))]
    yield "profile-international", [(b"iTXt", key + b"\0\0en\0\0" + raw_profile(6))]
    yield "profile-packed-international", [(b"iTXt", key + b"\1\0\0\0" + zlib.compress(raw_profile(6)))]
    yield "profile-twice", [(b"tEXt", key + raw_profile(6)), (b"tEXt", key + raw_profile(3))]
    yield "profile-damaged", [(b"zTXt", key + b"\0" + zlib.compress(raw_profile(6))[:-9] + bytes(9))]
    yield "profile-empty", [(b"tEXt", key)]
    yield "profile-other", [(b"tEXt", b"Raw profile type exif2\0" + raw_profile(6))]
    yield "profile-and-exif", [(b"tEXt", key + raw_profile(6)), (b"eXIf", orientation(3).tobytes()[6:])]
    yield "profile-and-empty-exif", [(b"eXIf", Image.Exif().tobytes()[6:]), (b"tEXt", key + raw_profile(6))]
    yield "profile-and-xmp", [(b"iTXt", xmp_key + bytes(4) + xmp(8)), (b"tEXt", key + raw_profile(6))]
    yield "xmp-packed", [(b"iTXt", xmp_key + b"\1\0\0\0" + zlib.compress(xmp(8)))]
    yield "xmp-text", [(b"tEXt", xmp_key + xmp(8))]


def jpegs():
    for mode, sampling, quality in itertools.product(("RGB", "L", "CMYK"), (0, 1, 2), (30, 75, 95)):
        picture = photo(mode, 61, 43, quality)
        yield f"{mode}-{sampling}-{quality}.jpg", saved(picture, "JPEG", subsampling=sampling, quality=quality)
    for width, height in ((1, 1), (1, 50), (50, 1), (7, 8), (9, 17), (333, 222)):
        yield f"{width}x{height}.jpg", saved(photo("RGB", width, height), "JPEG")
        yield f"progressive-{width}x{height}.jpg", saved(photo("RGB", width, height), "JPEG", progressive=True)
    for value in range(1, 9):
        yield f"exif-{value}.jpg", saved(photo("RGB", 40, 23, value), "JPEG", exif=orientation(value))
        yield f"exif-{value}-gray.jpeg", saved(photo("L", 40, 23, value), "JPEG", exif=orientation(value))
        yield f"xmp-{value}.jpg", saved(photo("RGB", 40, 23, value), "JPEG", xmp=xmp(value))
    for order, (kind, code), others in itertools.product("<>", TIFF_TYPES, ((), (1, 1), (1,) * 9)):
        exif = typed_orientation(order, kind, code, 6, *others)
        yield f"exif-{ord(order)}-{kind}-{len(others)}.jpg", saved(photo("RGB", 4, 3), "JPEG", exif=exif)
    yield "exif-before-xmp.jpg", saved(photo("RGB", 40, 23), "JPEG", exif=orientation(6), xmp=xmp(3))
    for stray in (b"\0", b"stray", b"\xff\xff\xff", b"\x01\xff\x00\x02"):
        jpeg = saved(photo("RGB", 40, 23), "JPEG")
        at = jpeg.index(b"\xff\xdb")
        yield f"stray-{stray.hex()}.jpg", jpeg[:at] + stray + jpeg[at:]
    yield "restarts.jpg", saved(photo("RGB", 90, 70), "JPEG", restart_marker_blocks=2)
    yield "rgb-transform.jpg", saved(photo("RGB", 40, 23), "JPEG", keep_rgb=True)
    yield "cmyk-exif.jpg", saved(photo("CMYK", 40, 23), "JPEG", exif=orientation(8))
    for transform in (0, 2):  # the colour transform in Adobe's segment: CMYK or YCCK
        jpeg = saved(photo("CMYK", 40, 23), "JPEG")
        at = jpeg.index(b"Adobe") + 11
        yield f"adobe-{transform}.jpg", jpeg[:at] + bytes([transform]) + jpeg[at + 1 :]


def riff_chunk(name, content):
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def riff(chunks):
    return riff_chunk(b"RIFF", b"WEBP" + chunks)


def webps():
    for mode, lossless, (width, height) in itertools.product(("RGB", "L", "RGBA", "LA"), (True, False), ((1, 1), (17, 9), (120, 77))):
        yield f"{mode}-{lossless}-{width}.webp", saved(photo(mode, width, height), "WEBP", lossless=lossless)
    for value in range(1, 9):
        yield f"exif-{value}.webp", saved(photo("RGBA", 31, 18), "WEBP", exif=orientation(value).tobytes(), lossless=True)
    yield "xmp.webp", saved(photo("RGB", 31, 18), "WEBP", xmp=xmp(6))
    for mode, lossless in itertools.product(("RGB", "RGBA"), (True, False)):  # Pillow opens the first frame
        frames = [photo(mode, 41, 30, seed) for seed in (1, 2)]
        animation = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=lossless)
        yield f"animated-{mode}-{lossless}.webp", animation
        still = saved(photo(mode, 20, 11), "WEBP", lossless=lossless)
        still = still[12:] if still[12:16] != b"VP8X" else still[30:]
        size = (6, 8, 19, 10)  # x / 2, y / 2, width - 1, height - 1
        frame = b"".join(value.to_bytes(3, "little") for value in (*size, 100)) + b"\0" + still
        yield f"corner-{mode}-{lossless}.webp", riff(animation[12 : animation.index(b"ANMF")] + riff_chunk(b"ANMF", frame))


def bmp_with_masks(bits, masks, header=124):
    width, height = 13, 6
    rng = random.Random(bits)
    stride = (width * bits // 8 + 3) // 4 * 4
    pixels = bytes(rng.randrange(256) for _ in range(stride * height))
    info = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, 3, len(pixels), 0, 0, 0, 0)
    info += struct.pack("<4I", *masks)[: 16 if header > 40 else 12]
    info += bytes(max(0, header - len(info)))
    offset = 14 + len(info)
    return b"BM" + struct.pack("<IHHI", offset + len(pixels), 0, 0, offset) + info + pixels


def rle_bmp(compression, data, bits):
    palette = b"".join(bytes([i * 7 % 256, i * 5 % 256, i * 3 % 256, 0]) for i in range(2**bits))
    info = struct.pack("<IiiHHIIiiII", 40, 16, 8, 1, bits, compression, len(data), 0, 0, 0, 0)
    offset = 14 + 40 + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + info + palette + data


def bmps():
    for mode, (width, height) in itertools.product(("RGB", "L", "P", "1", "RGBA"), ((1, 1), (17, 9), (33, 64))):
        yield f"{mode}-{width}x{height}.bmp", saved(photo(mode, width, height), "BMP")
    plain = saved(photo("RGB", 17, 9), "BMP")
    yield "from-top.bmp", plain[:22] + struct.pack("<i", -9) + plain[26:]
    yield "sixteen.bmp", saved(photo("RGB", 17, 9).quantize(16), "BMP")
    palette = saved(photo("P", 17, 9), "BMP")
    yield "offset-of-palette.bmp", palette[:10] + struct.pack("<I", 54) + palette[14:]
    for bits, masks in ((16, (0xF800, 0x7E0, 0x1F, 0)), (16, (0x7C00, 0x3E0, 0x1F, 0)),
                        (32, (0xFF0000, 0xFF00, 0xFF, 0)), (32, (0xFF0000, 0xFF00, 0xFF, 0xFF000000)),
                        (32, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)), (32, (0xFF000000, 0xFF0000, 0xFF00, 0xFF)),
                        (32, (0xFF000000, 0xFF0000, 0xFF00, 0))):
        for header in (56, 108, 124) if masks[3] else (40, 56, 108, 124):
            yield f"masks-{bits}-{masks[0]:x}-{masks[1]:x}-{masks[3]:x}-{header}.bmp", bmp_with_masks(bits, masks, header)
    runs = b"".join(bytes([16, y * 20, 0, 0]) for y in range(8)) + b"\0\1"
    yield "runs.bmp", rle_bmp(1, runs, 8)
    literal = b"".join(b"\0\x05" + bytes(range(y, y + 5)) + b"\0" + bytes([11, 200 - y, 0, 0]) for y in range(8)) + b"\0\1"
    yield "literals.bmp", rle_bmp(1, literal, 8)
    yield "jumps.bmp", rle_bmp(1, bytes([4, 9, 0, 2, 5, 2, 3, 77, 0, 0]) + bytes([16, 50, 0, 0]) * 5 + b"\0\1", 8)
    yield "nibbles.bmp", rle_bmp(2, b"".join(bytes([16, 0x1B + y, 0, 0]) for y in range(8)) + b"\0\1", 4)


def pnms():
    for mode, (width, height) in itertools.product(("RGB", "L"), ((1, 1), (17, 9), (64, 3))):
        extension = {"RGB": "ppm", "L": "pgm"}[mode]
        yield f"{width}x{height}.{extension}", saved(photo(mode, width, height), "PPM")
    rng = random.Random(2)
    for greatest in (1, 2, 15, 100, 254, 255):
        body = bytes(rng.randrange(greatest + 1) for _ in range(7 * 5 * 3))
        yield f"greatest-{greatest}.ppm", b"P6 7 5\n%d\n" % greatest + body
        yield f"greatest-{greatest}.pgm", b"P5 # comment\n7\n5 %d\n" % greatest + body[:35]
        text = " ".join(map(str, body)).encode()
        yield f"text-{greatest}.ppm", b"P3\n7 5 # size\n%d\n" % greatest + text
        yield f"text-{greatest}.pgm", b"P2\n7 5\n%d\n" % greatest + b"\n".join(text.split()[:35]) + b"\n"
    for greatest in (256, 1023, 65535):
        body = b"".join(struct.pack(">H", rng.randrange(greatest + 1)) for _ in range(7 * 5 * 3))
        yield f"greatest-{greatest}.ppm", b"P6 7 5 %d\n" % greatest + body


CORPUS = dict(itertools.chain(pngs(), jpegs(), webps(), bmps(), pnms()))
DEEP_GRAY = {
    "deep.png": saved(Image.fromarray(np.arange(0, 65536, 37, dtype=np.uint16)[:1500].reshape(30, 50)), "PNG"),
    "deep.pgm": saved(Image.fromarray(np.arange(0, 65536, 37, dtype=np.uint16)[:1500].reshape(30, 50)), "PPM"),
}
BACKGROUNDS = ((255, 255, 255), (0, 0, 0), (200, 30, 90))


def upright(data):
    with Image.open(io.BytesIO(data)) as picture:
        return ImageOps.exif_transpose(picture)


def as_pillow(data, channels, background):
    picture = upright(data)
    if picture.has_transparency_data:
        ground = Image.new("RGBA", picture.size, (*background, 255))
        picture = Image.alpha_composite(ground, picture.convert("RGBA"))
    return picture.convert("RGB" if channels == 3 else "L")


def planes(picture):
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def read_pictures(jobs):
    """Returns the pixels of each job (path, fit, height, width, channels, background), or its error."""
    lines = "".join(f"{path} {fit} {h} {w} {c} {' '.join(map(str, ground))}\n" for path, fit, h, w, c, ground in jobs)
    run = subprocess.run([PROGRAM], input=lines.encode(), capture_output=True, check=True)
    out = io.BytesIO(run.stdout)
    results = []
    for _ in jobs:
        head = out.readline().decode().rstrip("\n")
        if not head.startswith("ok "):
            results.append(head.removeprefix("error "))
            continue
        shape = tuple(map(int, head.split()[1:]))
        size = int(np.prod(shape))
        results.append(np.frombuffer(out.read(size), np.uint8).reshape(shape))
    assert not out.read()
    return results


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name, data in (CORPUS | DEEP_GRAY).items():
        (folder / name).write_bytes(data)
    return folder


def test_every_pixel_matches_pillow(files):
    assert len(CORPUS) >= 200
    jobs = [(name, channels, ground) for name in CORPUS for channels in (1, 3)
            for ground in (BACKGROUNDS if name.endswith((".png", ".webp", ".bmp")) else BACKGROUNDS[:1])]
    found = read_pictures([(files / name, "none", 0, 0, channels, ground) for name, channels, ground in jobs])
    wrong = []
    for (name, channels, ground), pixels in zip(jobs, found):
        wanted = planes(as_pillow(CORPUS[name], channels, ground)).astype(int)
        if isinstance(pixels, str):
            wrong.append(f"{name}: {pixels}")
        elif pixels.shape != wanted.shape:
            wrong.append(f"{name}: {pixels.shape}, expected {wanted.shape}")
        elif abs(pixels - wanted).max() > (2 if name.endswith((".jpg", ".jpeg")) else 0):
            wrong.append(f"{name} {channels} {ground}: off by {abs(pixels - wanted).max()}")
    assert not wrong, f"{len(wrong)} of {len(jobs)}:\n" + "\n".join(wrong)


def test_16_bit_grayscale_keeps_the_high_byte(files):
    for name, data in DEEP_GRAY.items():
        (pixels,) = read_pictures([(files / name, "none", 0, 0, 1, BACKGROUNDS[0])])
        assert (pixels[0] == np.asarray(Image.open(io.BytesIO(data))).astype(int) >> 8).all(), name


SIZES = [(1, 1), (1, 10000), (10000, 1), (2, 3), (31, 47), (64, 64), (100, 33), (33, 100), (333, 500), (97, 96), (95, 96), (20, 30), (30, 20)]
TARGETS = [(1, 1), (7, 7), (10, 10), (32, 32), (96, 96), (64, 33), (33, 64), (224, 224)]


def torchvision_crop(picture, height, width):
    torch = pytest.importorskip("torch")
    v2 = pytest.importorskip("torchvision.transforms.v2")
    chain = v2.Compose([v2.Resize(height, antialias=True), v2.CenterCrop((height, width))])
    if 1 in (height, *picture.size):  # torchvision 0.26 fails on some tensors of such sizes
        return planes(chain(picture))
    return chain(torch.from_numpy(planes(picture).copy())).numpy()


def pillow_pad(picture, height, width, ground):
    colour = ground if picture.mode == "RGB" else Image.new("RGB", (1, 1), ground).convert("L").getpixel((0, 0))
    return planes(ImageOps.pad(picture, (width, height), Image.Resampling.BILINEAR, color=colour))


def test_every_fit_matches_torchvision_and_pillow(tmp_path):
    jobs, wanted, ground = [], [], BACKGROUNDS[2]
    for number, ((width, height), channels) in enumerate([*((size, 3) for size in SIZES), *((size, 1) for size in SIZES[4:9])]):
        picture = photo("RGB" if channels == 3 else "L", width, height, number)
        path = tmp_path / f"{number}.png"
        picture.save(path)
        for h, w in TARGETS:
            jobs.append((path, "stretch", h, w, channels, ground))
            wanted.append(planes(picture.resize((w, h), Image.Resampling.BILINEAR)))
            if h == w and max(width / height, height / width) < 1000:
                jobs.append((path, "crop", h, w, channels, ground))
                wanted.append(torchvision_crop(picture, h, w))
            if min(height / width * w, width / height * h) >= 1:  # Pillow fails otherwise
                jobs.append((path, "pad", h, w, channels, ground))
                wanted.append(pillow_pad(picture, h, w, ground))
    found = read_pictures(jobs)
    wrong = [f"{job[0].name} {job[1:4]}: {pixels if isinstance(pixels, str) else abs(pixels - other.astype(int)).max()}"
             for job, pixels, other in zip(jobs, found, wanted) if isinstance(pixels, str) or abs(pixels - other.astype(int)).max() > 1]
    assert not wrong, "\n".join(wrong)


def test_thin_images_work_with_every_fit(tmp_path):
    for width, height in ((1, 10000), (10000, 1)):
        Image.new("RGB", (width, height), (10, 20, 30)).save(tmp_path / f"{width}.png")
        for fit in ("crop", "pad"):
            (pixels,) = read_pictures([(tmp_path / f"{width}.png", fit, 64, 64, 3, (1, 2, 3))])
            assert pixels.shape == (3, 64, 64)
            assert ([10, 20, 30] == pixels[:, 32, 32]).all()


def test_truncated_files_are_refused(files, tmp_path):
    jobs = []
    for name in ("RGB-64x33.png", "RGB-2-75.jpg", "RGBA-True-120.webp", "RGB-False-120.webp", "RGB-33x64.bmp", "17x9.ppm", "runs.bmp"):
        for part in (0.1, 0.5, 0.9):
            path = tmp_path / f"{part}-{name}"
            path.write_bytes(CORPUS[name][: int(part * len(CORPUS[name]))])
            jobs.append((path, "none", 0, 0, 3, BACKGROUNDS[0]))
    for job, message in zip(jobs, read_pictures(jobs)):
        assert isinstance(message, str) and message.startswith(f"{job[0]}: "), job[0]


@pytest.mark.parametrize("kind", ("TIFF", "GIF", "AVIF"))
def test_errors_about_unsupported_formats_name_a_conversion_command(tmp_path, kind):
    path = tmp_path / "picture.png"
    path.write_bytes(saved(photo("RGB", 32, 32), kind))
    (message,) = read_pictures([(path, "none", 0, 0, 3, BACKGROUNDS[0])])
    assert f"mogrify -format png {path}" in message
