#include "tools/piper/console.h"
#include "tools/piper/job.h"
#include "tools/piper/verbs.h"

namespace piper::cli {

namespace {

struct WorkerFlags {
  Job job;
  std::string join;
  double join_timeout_seconds = 60;
  bool verbose = false;
};

} // namespace

void add_worker(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand("worker", "Serve devices of a session in another process");
  auto flags = std::make_shared<WorkerFlags>();
  verb->add_option("--join", flags->join, "HOST:PORT of the session")->required();
  verb->add_option("--join-timeout", flags->join_timeout_seconds, "Seconds to wait for it")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->add_flag("--verbose", flags->verbose, "Show the whole log");
  flags->job.add_model_flags(*verb);
  verb->get_option("--model")->description("Refuse a session that trains another model than this");
  verb->callback([verb, flags, &registry, &exit_code] {
    if (const auto read = flags->job.read_config(*verb); !read.ok()) {
      exit_code = fail(read.error());
      return;
    }
    Console console(flags->verbose);
    WorkerOptions options;
    options.join = flags->join;
    options.join_timeout =
        std::chrono::milliseconds(static_cast<int64_t>(flags->join_timeout_seconds * 1000));
    if (verb->count("--model") > 0) {
      options.model_name = flags->job.model_name;
      options.model_config = flags->job.model_config();
    }
    options.log = console.log_sink();
    const auto result = run_worker(registry, options);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace piper::cli
