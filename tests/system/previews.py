"""The pixels that `preview` shows of each image."""

from pictures import read_png
from support import printed_json


def read_preview(config, page, *arguments):
    """By process: the facts of each image, with its "pixels" [H,W,C]."""
    shown = printed_json("preview", "--config", config, "--output", page, "--scale", 1, "--json", *arguments)
    pixels = read_png(page.read_bytes())
    processes = [process["images"] for process in shown["processes"]]
    for image in sum(processes, []):
        top, left = image["top"], image["left"]
        image["pixels"] = pixels[top:top + shown["height"], left:left + shown["width"]]
    return processes
