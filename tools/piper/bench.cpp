#include "actors/executor/bench.h"
#include "tools/bench/backward.h"
#include "tools/bench/compile.h"
#include "tools/bench/memory.h"
#include "tools/bench/overlap.h"
#include "tools/bench/simulate.h"
#include "tools/bench/train.h"
#include "tools/bench/transport.h"
#include "tools/piper/ablations.h"
#include "tools/piper/job.h"
#include "tools/piper/table.h"
#include "tools/piper/verbs.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace piper::cli {

namespace {

/// The Python that tools/setup installed.
std::string setup_python() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  std::string cache = variable("PIPER_CACHE");
  if (cache.empty())
    cache = (variable("XDG_CACHE_HOME").empty() ? variable("HOME") + "/.cache"
                                                : variable("XDG_CACHE_HOME")) +
            "/piper";
  return cache + "/venv/bin/python";
}

struct TrainBenchFlags {
  TrainBenchmark benchmark;
  Ablations ablations;
  std::string against, peer_script, size = "full", link, collective;
};

Result<void> run_train_bench(const CLI::App& verb, TrainBenchFlags& flags) {
  TrainBenchmark& b = flags.benchmark;
  if (flags.size == "tiny") { // where the runtime is what counts; flags still win
    const auto set = [&](const char* flag, int64_t& value, int64_t tiny) {
      if (verb.count(flag) == 0)
        value = tiny;
    };
    set("--layers", b.layers, 4);
    set("--d-model", b.d_model, 32);
    set("--heads", b.heads, 4);
    set("--seq", b.seq, 8);
    set("--iters", b.iterations, 100);
    set("--warmup", b.warmup, 20);
  }
  PIPER_CHECK_OK(check_collective(flags.collective));
  b.arguments = flags.ablations.arguments();
  if (!flags.link.empty())
    b.arguments.insert(b.arguments.end(), {"--link", flags.link});
  if (b.warmup >= b.iterations)
    return user_error("no iteration is left after the warm-up", "--warmup");
  if (flags.against == "libtorch") {
    b.peer_script = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpt_by_hand");
    b.peer_name = "LibTorch";
    b.python.clear();
    if (verb.count("--strategies") == 0)
      b.strategies = {"single"};
  } else if (!flags.against.empty()) {
    b.peer_script = flags.peer_script;
    if (const char* folder = std::getenv("PIPER_PEERS"); folder && b.peer_script.empty())
      b.peer_script = std::string(folder) + "/peers.py";
    if (b.peer_script.empty() || !std::filesystem::is_regular_file(b.peer_script))
      return user_error("the PyTorch script to compare with is missing", "--peer",
                        "give it with --peer FILE, or its folder in PIPER_PEERS");
  }
  return bench_train(b);
}

void add_train_bench(CLI::App& bench, int& exit_code) {
  auto* verb = bench.add_subcommand("train", "Tokens per second, alone or beside PyTorch");
  auto flags = std::make_shared<TrainBenchFlags>();
  TrainBenchmark& b = flags->benchmark;
  b.python = setup_python();
  verb->option_defaults()->always_capture_default();
  verb->add_option("--strategies", b.strategies, "Comma separated")->delimiter(',');
  verb->add_option("--size", flags->size, "full or tiny, where the flags below do not say")
      ->check(CLI::IsMember({"full", "tiny"}));
  verb->add_option("--layers", b.layers);
  verb->add_option("--d-model", b.d_model);
  verb->add_option("--heads", b.heads);
  verb->add_option("--seq", b.seq);
  verb->add_option("--batch", b.batch);
  verb->add_option("--microbatches", b.microbatches);
  verb->add_option("--dtype", b.dtype)->check(CLI::IsMember({"float32", "float64"}));
  verb->add_option("--iters", b.iterations, "With the warm-up");
  verb->add_option("--warmup", b.warmup, "Iterations that do not count");
  verb->add_option("--rounds", b.rounds, "Runs of each, in turn")->check(CLI::PositiveNumber);
  verb->add_option("--processes", b.processes, "Processes of ours")->check(CLI::PositiveNumber);
  verb->add_option("--link", flags->link, "LATENCY,BANDWIDTH of a slow link, as in piper train");
  flags->ablations.add_flags(*verb);
  add_collective_flag(*verb, flags->collective);
  verb->add_flag("--limits", b.limits, "Also measure what the machine would allow");
  verb->add_option("--against", flags->against,
                   "Compare with pytorch, or on one device with the model written in libtorch")
      ->check(CLI::IsMember({"pytorch", "libtorch"}));
  verb->add_option("--peer", flags->peer_script,
                   "The script that trains in PyTorch (default: $PIPER_PEERS/peers.py)");
  verb->add_option("--python", b.python, "A Python that has PyTorch");
  verb->callback([verb, flags, &exit_code] {
    const auto result = run_train_bench(*verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

void add_transport_bench(CLI::App& bench, int& exit_code) {
  auto* verb = bench.add_subcommand("transport", "Latency and bandwidth between two processes");
  auto mode = std::make_shared<std::string>("shm");
  auto per_row = std::make_shared<int64_t>(400);
  verb->option_defaults()->always_capture_default();
  verb->add_option("--transport", *mode, "shm or tcp")->check(CLI::IsMember({"shm", "tcp"}));
  verb->add_option("--per-row", *per_row, "Milliseconds")->check(CLI::PositiveNumber);
  verb->callback([mode, per_row, &exit_code] {
    const auto result =
        bench_transport(*mode == "tcp" ? transport::UcxMode::Tcp : transport::UcxMode::SharedMemory,
                        std::chrono::milliseconds(*per_row));
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

void add_dispatch_bench(CLI::App& bench, int& exit_code) {
  auto* verb = bench.add_subcommand("dispatch", "What an instruction costs beyond its kernel");
  auto instructions = std::make_shared<int>(10'000);
  verb->add_option("--instructions", *instructions, "Of a plan")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->callback([instructions, &exit_code] {
    const auto figures = executor::measure_dispatch(*instructions);
    if (!figures.ok()) {
      exit_code = fail(figures.error());
      return;
    }
    Table table({"an empty instruction", "ns"});
    table.row({"in one stream", fmt::format("{:.0f}", figures->one_stream_ns)});
    table.row({"each on the other stream", fmt::format("{:.0f}", figures->two_streams_ns)});
    std::fputs(table.to_string().c_str(), stdout);
  });
}

struct BackwardBenchFlags {
  Job job;
  BackwardBenchmark benchmark;
  int64_t milliseconds = 1000;
};

Result<void> run_backward_bench(const Registry& registry, CLI::App& verb,
                                BackwardBenchFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  PIPER_TRY(const Model model, flags.job.build_model(registry));
  if (flags.benchmark.rows > model.spec->batch)
    return user_error(fmt::format("{} rows are more than the {} of the batch", flags.benchmark.rows,
                                  model.spec->batch),
                      "--rows");
  flags.benchmark.time = std::chrono::milliseconds(flags.milliseconds);
  return bench_backward(model, flags.benchmark);
}

void add_backward_bench(CLI::App& bench, const Registry& registry, int& exit_code) {
  auto* verb = bench.add_subcommand("backward", "A backward in halves against a whole one");
  auto flags = std::make_shared<BackwardBenchFlags>();
  flags->job.add_model_flags(*verb);
  const auto option = [&](const char* name, auto& target, const char* help) {
    verb->add_option(name, target, help)
        ->check(CLI::PositiveNumber)
        ->capture_default_str()
        ->group("Benchmark");
  };
  option("--rows", flags->benchmark.rows, "Of the microbatch (default: the batch)");
  option("--rounds", flags->benchmark.rounds, "Of which the median is taken");
  option("--threads", flags->benchmark.threads, "Intra-op");
  option("--time", flags->milliseconds, "Milliseconds of a round, about");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_backward_bench(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

struct MemoryBenchFlags {
  Job job;
  MemoryBenchmark benchmark;
};

Result<void> run_memory_bench(const Registry& registry, CLI::App& verb, MemoryBenchFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  MemoryBenchmark& b = flags.benchmark;
  flags.job.devices = 1; // each strategy names its own
  PIPER_TRY(b.session, flags.job.session_options());
  if (b.session.memory_cap == 0)
    b.session.memory_cap = int64_t{64} << 20;
  b.model = [&](int64_t batch) {
    flags.job.set_model_key("batch", batch);
    return flags.job.build_model(registry);
  };
  b.strategy = [&](const std::string& expression, int64_t microbatches) {
    return read_strategy(expression, microbatches, "--strategies");
  };
  return bench_memory(b);
}

void add_memory_bench(CLI::App& bench, const Registry& registry, int& exit_code) {
  auto* verb = bench.add_subcommand(
      "memory", "The largest batch that fits --memory-cap (default: 64 MiB), and its speed");
  auto flags = std::make_shared<MemoryBenchFlags>();
  MemoryBenchmark& b = flags->benchmark;
  flags->job.add_model_flags(*verb);
  flags->job.add_session_flags(*verb);
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb->add_option(name, target, help)->capture_default_str()->group("Benchmark");
  };
  option("--strategies", b.strategies, "Comma separated")->delimiter(',');
  option("--microbatches", b.microbatches, "Of each strategy")->check(CLI::PositiveNumber);
  option("--iters", b.iterations, "Of each, the first of which does not count")
      ->check(CLI::PositiveNumber);
  option("--largest", b.largest, "Rows of a batch beyond which none is tried")
      ->check(CLI::PositiveNumber);
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_memory_bench(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

struct OverlapBenchFlags {
  Job job;
  OverlapBenchmark benchmark;
  int64_t milliseconds = 1500;
};

Result<void> run_overlap_bench(const Registry& registry, CLI::App& verb, OverlapBenchFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  OverlapBenchmark& b = flags.benchmark;
  PIPER_TRY(const Model model, flags.job.build_model(registry));
  PIPER_TRY(b.strategy, flags.job.strategy());
  PIPER_CHECK_OK(flags.job.settle_devices(model, {b.strategy}));
  PIPER_TRY(b.session, flags.job.session_options());
  b.model = [&] { return flags.job.build_model(registry); };
  b.time = std::chrono::milliseconds(flags.milliseconds);
  return bench_overlap(b);
}

void add_overlap_bench(CLI::App& bench, const Registry& registry, int& exit_code) {
  auto* verb = bench.add_subcommand(
      "overlap", "How much communication hides behind computation over a slow link");
  auto flags = std::make_shared<OverlapBenchFlags>();
  OverlapBenchmark& b = flags->benchmark;
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  flags->job.add_session_flags(*verb);
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb->add_option(name, target, help)
        ->check(CLI::PositiveNumber)
        ->capture_default_str()
        ->group("Benchmark");
  };
  option("--time", flags->milliseconds, "Milliseconds of measuring calls, about");
  option("--share", b.share, "Communication takes so many times as long as an iteration");
  option("--iters", b.iterations, "Of each turn");
  option("--unmeasured", b.warmup, "Iterations of each job that do not count");
  option("--rounds", b.rounds, "Turns of each job");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_overlap_bench(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

struct SimulateBenchFlags {
  Job job;
  SimulateBenchmark benchmark;
  int64_t milliseconds = 500;
  int64_t microbatches = 0;
};

Result<void> run_simulate_bench(const Registry& registry, CLI::App& verb,
                                SimulateBenchFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  SimulateBenchmark& b = flags.benchmark;
  flags.job.devices = 1; // each strategy names its own
  PIPER_TRY(b.session, flags.job.session_options());
  b.model = [&] { return flags.job.build_model(registry); };
  b.time = std::chrono::milliseconds(flags.milliseconds);
  std::vector<ir::Strategy> strategies;
  for (const std::string& expression : b.expressions) {
    PIPER_TRY(ir::Strategy strategy, read_strategy(expression, flags.microbatches, "--strategies"));
    b.strategies.push_back(std::move(strategy));
  }
  return bench_simulate(b);
}

void add_simulate_bench(CLI::App& bench, const Registry& registry, int& exit_code) {
  auto* verb = bench.add_subcommand("simulate",
                                    "Simulated iterations against measured ones, on this machine");
  auto flags = std::make_shared<SimulateBenchFlags>();
  SimulateBenchmark& b = flags->benchmark;
  flags->job.add_model_flags(*verb);
  flags->job.add_session_flags(*verb);
  const auto option = [&](const char* name, auto& target, const char* help) {
    return verb->add_option(name, target, help)->capture_default_str()->group("Benchmark");
  };
  option("--strategies", b.expressions, "Comma separated")->delimiter(',');
  option("--microbatches", flags->microbatches, "Of each strategy; 0: the builder's choice")
      ->check(CLI::NonNegativeNumber);
  option("--iters", b.iterations, "Of each turn")->check(CLI::PositiveNumber);
  option("--unmeasured", b.unmeasured, "Iterations before the first turn")
      ->check(CLI::NonNegativeNumber);
  option("--rounds", b.rounds, "Turns of iterations and of measuring calls")
      ->check(CLI::PositiveNumber);
  option("--time", flags->milliseconds, "Milliseconds of measuring calls, about")
      ->check(CLI::PositiveNumber);
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_simulate_bench(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

void add_compile_bench(CLI::App& bench, int& exit_code) {
  auto* verb = bench.add_subcommand("compile", "What compiling costs, by the size of the graph");
  auto largest = std::make_shared<int64_t>(1'000'000);
  verb->add_option("--nodes", *largest, "Of the largest graph")
      ->check(CLI::Range(1'000, 10'000'000))
      ->capture_default_str();
  verb->callback([largest, &exit_code] {
    const auto result = bench_compile(*largest);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace

void add_bench(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand("bench", "Measure the runtime");
  verb->require_subcommand(1);
  add_dispatch_bench(*verb, exit_code);
  add_backward_bench(*verb, registry, exit_code);
  add_compile_bench(*verb, exit_code);
  add_memory_bench(*verb, registry, exit_code);
  add_overlap_bench(*verb, registry, exit_code);
  add_simulate_bench(*verb, registry, exit_code);
  add_transport_bench(*verb, exit_code);
  add_train_bench(*verb, exit_code);
}

} // namespace piper::cli
