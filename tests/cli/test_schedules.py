"""Pipeline schedules between this program and PyTorch's own pipeline runtime, as CSV files."""
import csv
import types

from torch.distributed.pipelining import schedules as torch_schedules

from program import ProgramTest, main

# Name there: name here, stages of a rank.
SCHEDULES = {
    "GPipe": ("gpipe", 1),
    "1F1B": ("1f1b", 1),
    "Interleaved1F1B": ("interleaved", 2),
    "LoopedBFS": ("loopedbfs", 2),
    "InterleavedZeroBubble": ("zb1p", 2),
    "ZBVZeroBubble": ("zbv", 2),
    "DualPipeV": ("dualpipev", 2),
}
ALL_OURS = [ours for ours, _ in SCHEDULES.values()] + ["zbh1", "zbh2", "vhalf", "vmin"]
ONE_STAGE = {"gpipe", "1f1b", "zbh1", "zbh2"}


def stages(ranks, per_rank):
    """What PyTorch's schedules ask of the stages of rank 0."""
    return [types.SimpleNamespace(num_stages=ranks * per_rank, group_size=ranks, group_rank=0,
                                  stage_index=i, submod=None, is_first=False, is_last=False)
            for i in range(per_rank)]


def compute_only(rows):
    """Cells without idle slots and communication."""
    kept = [[c for c in row if c and not any(w in c for w in ("SEND", "RECV", "SHARD", "REDUCE"))]
            for row in rows]
    return "".join(",".join(row) + "\n" for row in kept)


class Schedules(ProgramTest):
    def compile(self, strategy, *arguments, ranks=4):
        return self.piper("compile", "--model", "mlp", "--layers", 2 * ranks, "--batch", 24,
                          "--strategy", strategy, *arguments).stdout

    def theirs(self, name, ranks, microbatches, comms=False):
        """A file that PyTorch writes, and its rows."""
        kind = torch_schedules.get_schedule_class(name)
        own = stages(ranks, SCHEDULES[name][1])
        path = self.folder / f"{name}-{ranks}-{microbatches}-{comms}.csv"
        if issubclass(kind, torch_schedules.PipelineScheduleSingle):
            order = kind(own[0], microbatches).pipeline_order
            if name == "1F1B":  # see test_defect_of_1f1b
                order[ranks - 1] = [a._replace(microbatch_index=a.microbatch_index - 1)
                                    if a and str(a.computation_type.value) == "F" else a
                                    for a in order[ranks - 1]]
            with open(path, "w", newline="") as file:
                csv.writer(file).writerows(order[rank] for rank in range(ranks))
        else:
            kind(own, microbatches)._dump_csv(
                path, format="compute_comms" if comms else "compute_only")
        with open(path, newline="") as file:
            return path, list(csv.reader(file))

    def test_reads_what_pytorch_writes(self):
        for name in SCHEDULES:
            for ranks, microbatches, comms in ((4, 8, False), (4, 12, True)):
                if comms and SCHEDULES[name][1] == 1:
                    continue
                with self.subTest(name, ranks=ranks, comms=comms):
                    path, rows = self.theirs(name, ranks, microbatches, comms)
                    self.assertEqual(self.compile(path, "--emit", "csv", ranks=ranks),
                                     compute_only(rows))

    def test_trains_what_pytorch_writes(self):
        for name in SCHEDULES:
            with self.subTest(name):
                path, _ = self.theirs(name, 2, 4)
                self.piper("check", "--model", "mlp", "--layers", 4, "--batch", 8, "--strategy",
                           path, "--iters", 2)

    def test_pytorch_reads_what_we_write(self):
        for name in ALL_OURS:
            with self.subTest(name):
                text = self.compile(f"{name}:4", "--microbatches", 8, "--emit", "csv")
                path = self.write(f"{name}.csv", text)
                runtime = torch_schedules._PipelineScheduleRuntime(
                    stages(4, 1 if name in ONE_STAGE else 2), 8)
                runtime._load_csv(path)  # validates, and raises if communication would block
                self.assertEqual([len(row) for row in runtime.pipeline_order.values()],
                                 [len(row.split(",")) for row in text.splitlines()])
                # With PyTorch's communication in it, it is still the same schedule to us.
                lowered = self.folder / "lowered.csv"
                runtime._dump_csv(lowered)
                self.assertEqual(self.compile(lowered, "--emit", "csv"), text)

    def test_defect_of_1f1b(self):
        """PyTorch 2.11 numbers the last rank's forwards from 1 in the table of its 1F1B, which its
        own executor does not use; its validator refuses that table, and so do we."""
        order = torch_schedules.Schedule1F1B(stages(2, 1)[0], 4).pipeline_order
        with self.assertRaises(AssertionError):
            torch_schedules._validate_schedule(order, 2, 2, 4)
        path = self.folder / "1f1b.csv"
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows(order[rank] for rank in range(2))
        self.refused("compile", "--model", "mlp", "--layers", 4, "--strategy", path, "--emit", "csv",
                     says="of microbatch")

    def test_refused(self):
        def refuses(text, says):
            self.refused("compile", "--model", "mlp", "--layers", 4, "--strategy",
                         self.write("bad.csv", text), "--emit", "csv", says=says)
        refuses("0F0,0B0\n1F0,fly\n", ["bad.csv, row 2, column 2", "'fly' is no action"])
        refuses("0F0,0B0\n1B0,1F0\n", ["1B0 can never start", "bad.csv, rank 1, step 0"])
        refuses("0F0,0B0\n1F0\n", ["bad.csv", "stage 1 has no backward (B) of microbatch 0"])
        refuses("", "the schedule is empty")
        self.refused("compile", "--model", "mlp", "--strategy", "none.csv",
                     says="there is no file none.csv")
        self.refused("compile", "--model", "mlp", "--strategy", "single", "--emit", "csv",
                     says="no pipeline schedule")


if __name__ == "__main__":
    main()
