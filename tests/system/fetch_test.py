"""`fetch` downloads complete, verified files, even from servers that drop connections, send wrong data or are down."""

import gzip
import hashlib
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support import BINARY, MNIST, environment, run

NAMES = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
NOWHERE = "http://127.0.0.1:9"  # the discard port, on which nothing listens


class Mirror:
    """An MNIST mirror whose responses a test can modify. `requests` lists (file name, Range header)."""

    def __init__(self, break_after=None, ranges=True, content=None, delay=None):
        self.requests = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rsplit("/", 1)[-1]
                wanted = self.headers.get("Range")
                mirror.requests.append((name, wanted))
                if delay:
                    delay.wait(30)
                body = (content or {}).get(name)
                if body is None:
                    if not (MNIST / name).exists():
                        return self.send_error(404)
                    body = (MNIST / name).read_bytes()
                begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and ranges else 0
                if begin >= len(body):
                    return self.send_error(416)
                self.send_response(206 if wanted and ranges else 200)
                self.send_header("Content-Length", str(len(body) - begin))
                if wanted and ranges:
                    self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
                self.end_headers()
                piece = body[begin:begin + break_after] if break_after else body[begin:]
                self.wfile.write(piece)
                self.close_connection = True

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/some/folder"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *failure):
        self.server.shutdown()
        self.server.server_close()


def fetch(folder, *urls, name="mnist", expect=0, **others):
    mirrors = [word for url in urls for word in ("--mirror", url)]
    return run("fetch", name, "--to", folder, *mirrors, expect=expect, **others)


def assert_whole(folder):
    visible = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert visible == sorted(NAMES)
    assert not list(folder.glob(".*.part"))
    for name in NAMES:
        assert (folder / name).read_bytes() == (MNIST / name).read_bytes()


def test_fetch_downloads_four_files_once(tmp_path):
    with Mirror() as mirror:
        done = fetch(tmp_path / "mnist", mirror.url)
        assert done.stdout.split() == [str(tmp_path / "mnist" / name) for name in NAMES]
        assert_whole(tmp_path / "mnist")
        fetch(tmp_path / "mnist", mirror.url + "/")
        assert [name for name, _ in mirror.requests] == NAMES


def test_an_interrupted_transfer_resumes_at_its_offset(tmp_path):
    with Mirror(break_after=4_000_000) as mirror:
        fetch(tmp_path, mirror.url)
        assert_whole(tmp_path)
        assert mirror.requests[:3] == [(NAMES[0], None), (NAMES[0], "bytes=4000000-"), (NAMES[0], "bytes=8000000-")]


def test_a_later_process_resumes_a_partial_file(tmp_path):
    with Mirror(break_after=1_000_000) as broken:
        process = subprocess.Popen([BINARY, "fetch", "mnist", "--to", str(tmp_path), "--mirror", broken.url],
                                   env=environment(), stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "resuming from byte" in line:
                break
        process.kill()
        process.wait()
        process.stderr.close()
        assert not (tmp_path / NAMES[0]).exists()
        broken.requests.clear()
        fetch(tmp_path, broken.url)
        assert broken.requests[0][1] is not None
    assert_whole(tmp_path)


def test_without_range_support_the_whole_file_is_requested(tmp_path):
    with Mirror(break_after=1_000_000, ranges=False) as mirror:
        fetch(tmp_path, mirror.url, expect=3)
        assert mirror.requests[1] == (NAMES[0], "bytes=1000000-")
        assert [path.name for path in tmp_path.glob("*.gz")] == []
        (part,) = tmp_path.glob(".*.part")
        assert part.read_bytes() == (MNIST / NAMES[0]).read_bytes()[:1_000_000]


def test_a_file_with_wrong_content_never_gets_its_final_name(tmp_path):
    images = bytearray(gzip.decompress((MNIST / NAMES[0]).read_bytes()))
    images[5000] ^= 1
    wrong = {NAMES[0]: gzip.compress(bytes(images), 1)}
    with Mirror(content=wrong) as mirror:
        done = fetch(tmp_path, mirror.url, expect=3)
    assert hashlib.sha256(images).hexdigest() in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"<html>sign in</html>", gzip.compress(bytes(60_000_000)), b""])
def test_login_pages_gzip_bombs_and_empty_files_are_refused(tmp_path, content):
    with Mirror(content={NAMES[0]: content}) as mirror:
        fetch(tmp_path, mirror.url, expect=3)
    assert not (tmp_path / NAMES[0]).exists()


def test_the_next_mirror_is_tried(tmp_path):
    wrong = {name: b"no" for name in NAMES}
    with Mirror(content=wrong) as lying, Mirror() as good:
        fetch(tmp_path, NOWHERE, lying.url, good.url)
        assert_whole(tmp_path)
        assert [name for name, _ in good.requests] == NAMES


def test_if_all_mirrors_fail_each_error_is_printed(tmp_path):
    with Mirror() as mirror:
        done = fetch(tmp_path, NOWHERE, mirror.url, name="fashion-mnist", expect=3)
    for url in (NOWHERE, mirror.url):
        assert sum(line.startswith(f"mnist-train fetch: {url}/") for line in done.stderr.splitlines()) == 2  # the attempt and its failure
        assert done.stderr.count(url) == 2, done.stderr
    assert "--mirror" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failed_fetch_removes_only_empty_folders_that_it_created(tmp_path):
    fetch(tmp_path / "new" / "mnist", NOWHERE, expect=3)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "own").mkdir()
    fetch(tmp_path / "own" / "mnist", NOWHERE, expect=3)
    fetch(tmp_path / "own", NOWHERE, expect=3)
    assert list(tmp_path.rglob("*")) == [tmp_path / "own"]


def test_a_damaged_file_is_downloaded_again(tmp_path):
    (tmp_path / NAMES[1]).write_bytes(b"\x1f\x8bdamaged")
    fetch(tmp_path, MNIST.as_uri())
    assert_whole(tmp_path)


def test_one_process_downloads_while_others_wait(tmp_path):
    go = threading.Event()
    with Mirror(delay=go) as mirror:
        command = [BINARY, "fetch", "mnist", "--to", str(tmp_path), "--mirror", mirror.url]
        processes = [subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(3)]
        waiting = 0
        for process in processes:
            waiting += "waiting for another process" in process.stderr.readline()
        assert waiting == 2
        go.set()
        for process in processes:
            process.communicate(timeout=60)
            assert process.returncode == 0
        assert len(mirror.requests) == 4
    assert_whole(tmp_path)


def test_invalid_calls_are_refused(tmp_path):
    fetch(tmp_path, name="imagenet", expect=2)
    run("fetch", "mnist", expect=2)
    assert "/proc/nowhere: cannot create the folder" in fetch("/proc/nowhere", MNIST.as_uri(), expect=2).stderr


def test_files_of_another_data_set_are_not_replaced(tmp_path):
    fetch(tmp_path, MNIST.as_uri())
    refused = fetch(tmp_path, NOWHERE, name="fashion-mnist", expect=2).stderr
    assert "is a file of mnist" in refused and "choose another folder" in refused, refused
    assert_whole(tmp_path)


def test_links_and_pipes_in_place_of_a_partial_download_are_refused(tmp_path):
    folder, victim = tmp_path / "data", tmp_path / "victim"
    with Mirror(break_after=1000, ranges=False) as mirror:
        fetch(folder, mirror.url, expect=None)
        (part,) = folder.glob(".*.part")
        for place in (part, folder / ".fetch.lock"):
            victim.write_text("precious")
            for plant in (lambda: place.symlink_to(victim), lambda: place.hardlink_to(victim), lambda: os.mkfifo(place)):
                place.unlink(missing_ok=True)
                plant()
                done = fetch(folder, mirror.url, timeout=30, expect=None)
                assert done.returncode in (2, 3), done.stderr
                assert f"{place}: is a link, is not a regular file or belongs to another user; remove it" in done.stderr
                assert victim.read_text() == "precious" and not list(folder.glob("*.gz"))
            place.unlink()
