"""Tests the output of a run on a terminal, which is a real pty whose output is read and rendered here."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest
from support import BINARY, LONG_S, environment, run, train, wait_until, write_config


class Terminal:
    """Runs a command on a terminal of the given width and records its output."""

    def __init__(self, command, folder, columns, term="xterm"):
        self.main, other = pty.openpty()
        self.resize(columns)
        self.popen = subprocess.Popen(list(map(str, command)), stdin=other, stdout=other, stderr=other, cwd=folder,
                                      env=environment(TERM=term, LANG="C.UTF-8"), start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(other)
        self.written = b""
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        while True:
            try:
                part = os.read(self.main, 65536)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            self.written += part

    def resize(self, columns):
        self.columns = columns
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def type(self, keys):
        os.write(self.main, keys)

    def wait(self):
        code = self.popen.wait(LONG_S)
        self.reader.join()
        os.close(self.main)
        return code

    @property
    def text(self):
        return self.written.decode()


def drawn(text, columns):
    """Returns the lines that a terminal shows at the end. Supports the control codes that a run prints: CR, LF, colours and erase below."""
    rows, row, column = [[]], 0, 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.", text, re.DOTALL):
        if part == "\x1b[J":
            del rows[row][column:], rows[row + 1:]
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
        elif part.startswith("\x1b"):
            assert re.fullmatch(r"\x1b\[[0-9;]*m", part), repr(part)
        else:
            if column == columns:
                row, column = row + 1, 0
            rows.extend([] for _ in range(row + 1 - len(rows)))
            rows[row] += " " * (column - len(rows[row]))
            rows[row][column:column + 1] = part
            column += 1
        rows.extend([] for _ in range(row + 1 - len(rows)))
    return ["".join(line).rstrip() for line in rows]


def progress_lines(text):
    return re.findall(r"\r\x1b\[J(epoch [^\r\n]*)\r", text)


def start_on(tmp_path, columns, changes, term="xterm"):
    command = [BINARY, "--config", write_config(tmp_path, changes), "--output", "run", "--nproc-per-node", 1]
    return Terminal(command, tmp_path, columns, term)


def test_a_run_fits_its_terminal(tmp_path):
    columns = 40
    terminal = start_on(tmp_path, columns, {"epochs": 3})
    assert terminal.wait() == 0, terminal.text
    lines = drawn(terminal.text, columns)
    heads = [number for number, line in enumerate(lines) if line.startswith("  epoch  test loss  test acc.")]
    assert len(heads) == 1, lines
    epochs = lines[heads[0] + 1:heads[0] + 4]
    for number, line in enumerate(epochs):
        assert re.match(rf"    {number + 1}/3 +0?\d*\.\d{{4}} +\d+\.\d\d %", line), lines
        assert len(line) < columns
    assert re.match(r"best weights: ", lines[heads[0] + 4]), lines
    shown = progress_lines(terminal.text)
    assert shown
    for line in shown:
        assert len(line) < columns
        assert re.match(r"epoch \d/3(  \d+/20)?(  loss \d+\.\d{4})?(  [\d,]+ samples/s)?(  ETA \d+:\d\d)?(  \[=*>? *\])?$", line), line
    assert any("loss" in line and "ETA" in line for line in shown)


def test_a_run_adapts_when_its_terminal_becomes_narrower(tmp_path):
    terminal = start_on(tmp_path, 120, {"epochs": 1000, "data": {"limit_test": 100}})
    wait_until(lambda: "ETA" in terminal.text, "the first steps")
    terminal.resize(50)
    time.sleep(0.3)
    seen = len(terminal.text)
    wait_until(lambda: len(progress_lines(terminal.text[seen:])) > 3, "more progress lines")
    assert all(len(line) < 50 for line in progress_lines(terminal.text[seen:])[1:])
    terminal.type(b"\x03")
    assert terminal.wait() == 130


def test_ctrl_c_leaves_a_clean_line_and_prints_the_resume_command(tmp_path):
    terminal = start_on(tmp_path, 300, {"epochs": 1000, "data": {"limit_test": 100}})
    wait_until(lambda: "ETA" in terminal.text, "the first steps")
    terminal.type(b"\x03")
    assert terminal.wait() == 130
    *_, last = filter(None, drawn(terminal.text, 300))
    assert re.match(r"stopped and saved at epoch \d+, step \d+; continue with: \S*mnist-train --config \S+ --output "
                    r"\S+ --resume auto$", last), last


@pytest.mark.parametrize("delay_s", [0.1, 0.2, 0.4])
def test_ctrl_c_during_start_up_prints_a_message_and_leaves_no_folder(tmp_path, delay_s):
    terminal = start_on(tmp_path, 300, {"epochs": 1000})
    time.sleep(delay_s)
    terminal.type(b"\x03")
    code = terminal.wait()
    lines = [line for line in drawn(terminal.text, 300) if line]
    assert code in (130, -signal.SIGINT)
    if code == 130:
        assert "stopped" in "".join(lines[-4:]) and "^C" not in "".join(lines), lines
    if "before the first step" in terminal.text and "run folder" not in terminal.text:
        assert not (tmp_path / "run").exists()


def test_a_dumb_terminal_gets_plain_lines(tmp_path):
    terminal = start_on(tmp_path, 80, {"epochs": 1}, term="dumb")
    assert terminal.wait() == 0
    assert "\x1b" not in terminal.text
    assert re.search(r"^epoch 1/1, step 20/20: loss \S+, [\d,]+ samples/s, ETA 0:00\r$", terminal.text, re.MULTILINE)


def test_a_finished_run_prints_the_next_commands(tmp_path):
    folder = train(tmp_path, {"epochs": 2})
    lines = folder.stderr.splitlines()[-3:]
    assert lines[0].endswith("checkpoints/best.safetensors"), lines
    assert lines[1].startswith("report: ") and (tmp_path / lines[1].split(": ")[1]).is_file()
    command = lines[2].removeprefix("classify images: ").split()
    assert command[1:3] == ["predict", "--checkpoint"] and (tmp_path / command[3]).exists(), lines
    run("--config", write_config(tmp_path), "--output", "run", folder=tmp_path, expect=2)
