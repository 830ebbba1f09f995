"""Runs the `piper` program for the tests beside this file."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PIPER = os.environ["PIPER"]
TIMEOUT = 60  # seconds; nothing here takes more than a few
# A gpt that trains an iteration in milliseconds.
TINY = ("--layers", "2", "--d-model", "16", "--heads", "2", "--seq", "8", "--batch", "4")

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="piper-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(path)

    def piper(self, *arguments, code=DONE):
        """The finished run, which must have ended with `code`."""
        run = subprocess.run([PIPER, *map(str, arguments)], capture_output=True, text=True,
                             timeout=TIMEOUT)
        self.assertEqual(run.returncode, code,
                         f"{arguments}\nstdout: {run.stdout}\nstderr: {run.stderr}")
        return run

    def refused(self, *arguments, says, code=WRONG_INPUT):
        """A run that must end with `code` and a message that holds each of `says`."""
        message = self.piper(*arguments, code=code).stderr
        for text in [says] if isinstance(says, str) else says:
            self.assertIn(text, message)

    def train(self, *arguments, code=DONE):
        """The report of a training run of the tiny gpt."""
        path = self.folder / "report.json"
        self.piper("train", *TINY, "--report", path, *arguments, code=code)
        return json.loads(path.read_text())


def losses(report):
    return [iteration["loss"] for iteration in report["iterations"]]


def main():
    unittest.main(verbosity=2)
