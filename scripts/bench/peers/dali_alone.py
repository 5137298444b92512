"""Runs NVIDIA DALI without a trainer: its Caffe2 reader, decoder and resize, in a loop that discards the batches.

    dali_alone.py write FOLDER COUNT SIDE                     writes photo-like JPEG images to a Caffe2 LMDB
    dali_alone.py read FOLDER THREADS BATCH SIZE EPOCHS       prints {"images_per_second": N}
"""

import io
import json
import sys
import time


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def write(folder, count, side):
    import lmdb
    import numpy
    from PIL import Image

    numbers = numpy.random.default_rng(1)
    with lmdb.open(folder, map_size=8 << 30) as environment, environment.begin(write=True) as table:
        for key in range(count):
            coarse = numbers.integers(0, 256, (side // 8, side // 8, 3), dtype=numpy.uint8)
            smooth = numpy.asarray(Image.fromarray(coarse).resize((side, side), Image.BICUBIC), dtype=int)
            noisy = (smooth + numbers.integers(-8, 9, smooth.shape)).clip(0, 255).astype(numpy.uint8)
            file = io.BytesIO()
            Image.fromarray(noisy).save(file, "JPEG", quality=85)
            image = field(1, 1) + field(2, 4) + field(6, file.getvalue())
            label = field(1, 1) + field(2, 2) + field(4, key % 10)
            table.put(b"%08d" % key, field(1, image) + field(1, label))


def read(folder, threads, batch, size, epochs):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None, prefetch_queue_depth=2)
    def pipeline():
        encoded, labels = fn.readers.caffe2(path=folder, name="reader", random_shuffle=True)
        images = fn.resize(fn.decoders.image(encoded, output_type=types.RGB, jpeg_fancy_upsampling=True), size=[size, size])
        return fn.crop_mirror_normalize(images, dtype=types.UINT8, output_layout="CHW"), labels

    pipe = pipeline()
    pipe.build()
    steps = -(-pipe.epoch_size("reader") // batch)
    for _ in range(steps):
        pipe.run()
    begin = time.perf_counter()
    for _ in range(epochs * steps):
        pipe.run()
    print(json.dumps({"images_per_second": epochs * steps * batch / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    arguments = sys.argv[2:]
    if sys.argv[1] == "write":
        write(arguments[0], *map(int, arguments[1:]))
    else:
        read(arguments[0], *map(int, arguments[1:]))
