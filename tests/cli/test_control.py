"""`piper ctl` against a run: status, a change, a refused change, the end."""
import json
import re
import subprocess

from program import FAILED, PIPER, TIMEOUT, TINY, ProgramTest, main


class Control(ProgramTest):
    def start(self, *arguments):
        """A run with a control address, and that address."""
        run = subprocess.Popen([PIPER, "train", *TINY, "--strategy", "dp:2", "--devices", "2",
                                "--microbatches", "4", "--iters", "1000000", "--control",
                                "127.0.0.1:0", *map(str, arguments)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        def end():
            run.kill()
            run.communicate()
        self.addCleanup(end)
        for line in run.stdout:
            if match := re.match(r"control at (\S+)", line):
                return run, match[1]
        self.fail("the run told no control address")

    def test_a_run_is_steered(self):
        report = self.folder / "report.json"
        run, address = self.start("--report", report)

        status = json.loads(self.piper("ctl", "--connect", address, "status").stdout)
        self.assertEqual(status["strategy"], "dp:2")
        self.assertEqual(len(status["devices"]), 2)

        while json.loads(self.piper("ctl", "--connect", address, "status").stdout)["iterations"] < 1:
            pass
        trace = json.loads(self.piper("ctl", "--connect", address, "timeline").stdout)
        self.assertEqual({e["pid"] for e in trace["traceEvents"]}, {0, 1})

        strategy = self.write("pipeline.json", [{"op": "schedule", "name": "1f1b:2",
                                                 "microbatches": 4}])
        self.piper("ctl", "--connect", address, "apply", strategy)
        status = json.loads(self.piper("ctl", "--connect", address, "status").stdout)
        self.assertGreater(status["epoch"], 0)
        self.assertEqual(len(status["changes"]), 1)
        self.assertEqual(status["changes"][0]["to"], str(strategy))

        bad = self.write("bad.json", [{"op": "place", "filter": {"wing": 1}, "devices": [0]}])
        self.refused("ctl", "--connect", address, "apply", bad, says="bad.json:1")
        broken = self.write("broken.json", '[{"op" "place"}]')
        self.refused("ctl", "--connect", address, "apply", broken, says="broken.json:1:")

        self.piper("ctl", "--connect", address, "stop")
        run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 0)
        written = json.loads(report.read_text())
        self.assertEqual(len(written["changes"]), 1)
        self.assertEqual(written["changes"][0]["from"], "dp:2")

    def test_refused(self):
        self.refused("ctl", "--connect", "127.0.0.1:1", "status", says="127.0.0.1:1", code=FAILED)
        self.refused("ctl", "--connect", "nowhere", "status", says="'nowhere' is no address")
        self.refused("ctl", "status", says="--connect")
        self.refused("ctl", "--connect", "127.0.0.1:1", "apply", says="FILE")
        self.refused("ctl", "--connect", "127.0.0.1:1", "apply", self.folder / "none.json",
                     says="none.json")


if __name__ == "__main__":
    main()
