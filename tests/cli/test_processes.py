"""Training over several processes: the same numbers, and no process that outlives the run."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import uuid

from program import FAILED, PIPER, TIMEOUT, TINY, ProgramTest, losses, main

LONG = ("--iters", "1000000")  # a run that something else has to end


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes(ProgramTest):
    def setUp(self):
        super().setUp()
        # Marks every process of this test, whoever its parent is.
        self.mark = f"PIPER_TEST_MARK={uuid.uuid4()}"
        self.environment = dict(os.environ, **dict([self.mark.split("=")]))
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in self.marked()])

    def marked(self, verb=""):
        """The pids of this test's processes that run `verb`."""
        pids = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    if not verb or verb.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                        pids.append(int(folder.name))
            except OSError:
                pass  # it ended meanwhile, or is not ours to read
        return pids

    def start(self, *arguments):
        run = subprocess.Popen([PIPER, *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=self.environment)
        def end():
            run.kill()
            run.communicate()
        self.addCleanup(end)
        return run

    def start_training(self, *arguments):
        """A run over two processes that has done its first iterations."""
        run = self.start("train", *TINY, "--strategy", "1f1b:2", "--microbatches", "2",
                         "--processes", "2", *arguments)
        for _ in range(3):
            self.assertIn("iteration", run.stdout.readline())
        return run

    def ended(self, run, within):
        """(stdout, stderr) of a run that must end by itself, with all its processes."""
        begin = time.monotonic()
        output = run.communicate(timeout=TIMEOUT)
        self.assertLess(time.monotonic() - begin, within)
        self.assertEqual(self.marked(), [])
        return output

    def test_same_numbers(self):
        for strategy in ("1f1b:2", "dp:2"):
            with self.subTest(strategy):
                common = ("--strategy", strategy, "--microbatches", "4", "--iters", "4",
                          "--dtype", "float64")
                one = self.train(*common)
                two = self.train(*common, "--processes", "2")
                self.assertEqual(losses(one), losses(two))
                self.assertEqual(one["parameters_digest"], two["parameters_digest"])
                self.assertEqual(len({d["process"] for d in two["devices"]}), 2)

    def test_mirrors_change_nothing(self):
        plain = [{"op": "schedule", "name": "zero1:2", "microbatches": 4}]
        mirrored = plain + [{"op": "mirror", "filter": {}}]
        digests = set()
        for number, strategy in enumerate((plain, mirrored)):
            path = self.folder / f"strategy{number}.json"
            path.write_text(json.dumps(strategy))
            for processes in (1, 2):
                digests.add(self.train("--strategy", path, "--iters", "3", "--dtype", "float64",
                                       "--processes", processes)["parameters_digest"])
        self.assertEqual(len(digests), 1)

    def test_tcp_and_shared_memory(self):
        digests = {self.train("--strategy", "1f1b:2", "--microbatches", "2", "--iters", "2",
                              "--processes", "2", "--transport", transport)["parameters_digest"]
                   for transport in ("shm", "tcp")}
        self.assertEqual(len(digests), 1)

    def test_change_mid_run(self):
        report = self.train("--strategy", "dp:2", "--at", "2=1f1b:2", "--microbatches", "4",
                            "--iters", "4", "--processes", "2", "--dtype", "float64")
        alone = self.train("--strategy", "dp:2", "--microbatches", "4", "--iters", "4",
                           "--dtype", "float64")
        self.assertEqual(report["changes"][0]["iteration"], 2)
        for a, b in zip(losses(alone), losses(report)):
            self.assertAlmostEqual(a, b, delta=1e-12 * a)

    def test_killed_worker_ends_the_run(self):
        run = self.start_training(*LONG)
        (worker,) = self.marked("worker")
        os.kill(worker, signal.SIGKILL)
        _, errors = self.ended(run, within=2)
        self.assertEqual(run.returncode, FAILED)
        self.assertRegex(errors, rf"worker 1 .*{worker}")

    def test_hung_worker_ends_the_run(self):
        for transport in ("shm", "tcp"):
            with self.subTest(transport):
                run = self.start_training(*LONG, "--deadline", "0.5", "--transport", transport)
                (worker,) = self.marked("worker")
                os.kill(worker, signal.SIGSTOP)
                _, errors = self.ended(run, within=8)  # the deadline, and the grace of each
                self.assertEqual(run.returncode, FAILED)
                self.assertRegex(errors, rf"worker 1 .*{worker}.* with device 1 did not answer")

    def test_workers_go_with_their_parent(self):
        run = self.start_training(*LONG)
        run.kill()
        run.wait()
        deadline = time.monotonic() + 2
        while self.marked() and time.monotonic() < deadline:
            pass
        self.assertEqual(self.marked(), [])

    def test_interrupt_ends_after_the_iteration(self):
        report = self.folder / "report.json"
        run = self.start_training(*LONG, "--at", "999999=dp:2", "--report", report)
        run.send_signal(signal.SIGINT)
        self.ended(run, within=5)
        self.assertEqual(run.returncode, 0)
        written = json.loads(report.read_text())
        self.assertGreaterEqual(len(written["iterations"]), 3)
        self.assertIn("parameters_digest", written)

    def test_worker_joins_by_hand(self):
        address = f"127.0.0.1:{free_port()}"
        run = self.start("train", *TINY, "--strategy", "dp:2", "--microbatches", "2", "--iters",
                         "2", "--workers", "1", "--listen", address)
        worker = self.start("worker", "--join", address)
        run.communicate(timeout=TIMEOUT)
        worker.communicate(timeout=TIMEOUT)
        self.assertEqual((run.returncode, worker.returncode), (0, 0))

    def test_worker_of_another_model_is_refused(self):
        address = f"127.0.0.1:{free_port()}"
        self.start("train", *TINY, "--strategy", "dp:2", "--microbatches", "2", "--iters", "2",
                   "--workers", "1", "--listen", address)
        run = self.start("worker", "--join", address, "--model", "mlp")
        _, errors = run.communicate(timeout=TIMEOUT)
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(errors, re.compile("another model|mlp"))

    def test_nobody_to_join(self):
        address = f"127.0.0.1:{free_port()}"
        self.refused("worker", "--join", address, "--join-timeout", "0.3", says=address,
                     code=FAILED)

    def test_port_in_use(self):
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            address = f"127.0.0.1:{busy.getsockname()[1]}"
            run = self.start("train", *TINY, "--strategy", "dp:2", "--microbatches", "2",
                             "--workers", "1", "--listen", address)
            _, errors = self.ended(run, within=10)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(address.split(":")[1], errors)


if __name__ == "__main__":
    main()
