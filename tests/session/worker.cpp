// session_worker HOST:PORT [--version V] [--insist NAME CONFIG] [--other] [--timeout MS]
// Joins a session as a worker; prints the error, if any, and exits with 1. --other: its model of
// the session's name is another one.
// session_worker HOST:PORT --session CONFIG
// Is a session of two devices, one of them in a worker, that trains until it is killed.
#include "actors/worker.h"
#include "examples/models/registry.h"

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include <sys/prctl.h>

namespace {

int train(const std::string& listen, const std::string& config) {
  piper::SessionOptions options;
  options.devices = 2;
  options.workers = 1;
  options.listen = listen;
  options.model_name = "mlp";
  options.model_config = config;
  piper::ir::Strategy strategy;
  strategy.schedule("dp:2");
  auto session =
      piper::Session::create(piper::models::make_mlp(config).value_or_throw(), strategy, options);
  if (!session.ok())
    return 1;
  auto said = false;
  return (*session)
      ->run(INT64_MAX,
            [&](const piper::StepResult&) {
              if (!std::exchange(said, true)) {
                std::puts("training");
                std::fflush(stdout);
              }
              return true;
            })
      .ok();
}

} // namespace

int main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL); // nothing is left over, whatever happens to the test
  piper::WorkerOptions options;
  options.join_timeout = std::chrono::seconds(20);
  std::string version = piper::actors::version();
  bool other = false;
  std::string session_config;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    if (flag == "--version")
      version = argv[++i];
    else if (flag == "--timeout")
      options.join_timeout = std::chrono::milliseconds(std::stoi(argv[++i]));
    else if (flag == "--session")
      session_config = argv[++i];
    else if (flag == "--other")
      other = true;
    else if (flag == "--insist")
      options.model_name = argv[++i], options.model_config = argv[++i];
    else
      options.join = flag;
  }
  if (!session_config.empty())
    return train(options.join, session_config);
  piper::Registry registry;
  registry.add("mlp", [other](const std::string& config) {
    return piper::models::make_mlp(other ? R"({"layers": 9})" : config);
  });
  auto result = piper::actors::run_worker_as(version, registry, options);
  if (result.ok())
    return 0;
  std::printf("%s\n", result.error().to_string().c_str());
  return 1;
}
