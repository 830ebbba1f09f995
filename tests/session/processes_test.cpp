// A session of several processes: workers join, train, die.
#include "training.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <future>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

/// A worker process; killed and reaped at the end if it still runs.
class WorkerProcess {
public:
  explicit WorkerProcess(std::vector<std::string> arguments) {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    std::string program = std::string(PIPER_BIN_DIR) + "/session_worker";
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (auto& argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  ~WorkerProcess() {
    if (pid_ > 0)
      kill();
    close(out_);
  }
  pid_t pid() const { return pid_; }
  void kill(int signal = SIGKILL) {
    ::kill(pid_, signal);
    if (signal == SIGKILL)
      reap();
  }
  /// Its exit status, or -1 if it does not end within `limit`.
  int wait(std::chrono::milliseconds limit = 5s) {
    for (auto until = Clock::now() + limit; Clock::now() < until;) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(5ms);
    }
    return -1;
  }
  /// What it printed first; waits for it.
  std::string output() {
    std::string text(4096, '\0');
    ssize_t got = read(out_, text.data(), text.size());
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

private:
  void reap() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
  }
  pid_t pid_ = -1;
  int out_ = -1;
};

/// A port that was free a moment ago.
std::string free_address() {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

/// Collects what a session logs.
struct Lines {
  std::mutex mutex;
  std::vector<std::string> lines;
  LogSink sink() {
    return [this](LogLevel, const std::string& line) {
      std::lock_guard lock(mutex);
      lines.push_back(line);
    };
  }
  bool contain(const std::string& part) {
    std::lock_guard lock(mutex);
    return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    });
  }
};

SessionOptions with_workers(uint32_t devices, uint32_t workers) {
  auto with = options(devices);
  with.workers = workers;
  with.listen = free_address();
  with.model_name = "mlp";
  with.model_config = kModel;
  with.join_timeout = 30s;
  return with;
}

} // namespace

TEST_CASE("two processes train as one, change, and say goodbye") {
  auto kind = GENERATE(TransportKind::Auto, TransportKind::UcxTcp);
  auto with = with_workers(2, 1);
  with.transport = kind;
  WorkerProcess worker({with.listen});
  auto session = open("1f1b:2", with);
  CHECK(session->listen_address() == with.listen);
  auto all = losses(*session, 4);
  const auto timeline = session->timeline();
  REQUIRE(timeline.ok());
  check_timeline(*timeline);
  auto change = session->apply(named("dp:2"));
  if (!change.ok())
    FAIL(change.error().to_string());
  auto more = losses(*session, 4);
  all.insert(all.end(), more.begin(), more.end());
  CHECK(close(all, undisturbed(8)));
  // With a pipeline worker 1 holds what only it holds.
  REQUIRE(session->apply(named("gpipe:2")).ok());
  auto parameters = session->parameters();
  REQUIRE(parameters.ok());
  auto single = open("single", options(1));
  losses(*single, 8);
  auto expected = *single->parameters();
  REQUIRE(parameters->size() == expected.size());
  for (const auto& [name, tensor] : *parameters)
    CHECK(difference(tensor, expected.at(name)) < 1e-12);
  CHECK(session->parameters_digest().ok());
  CHECK(session->metrics().devices[1].process ==
        "worker 1 (pid " + std::to_string(worker.pid()) + ")");
  auto begun = Clock::now();
  session.reset();
  CHECK(Clock::now() - begun < 3s);
  CHECK(worker.wait() == 0);
}

TEST_CASE("a killed worker ends the run within two seconds, by name, and the others end too") {
  auto with = with_workers(3, 2);
  WorkerProcess one({with.listen}), two({with.listen});
  auto session = open("dp:1x1f1b:3", with);
  auto name = session->metrics().devices[1].process;
  WorkerProcess& victim = name.find(std::to_string(one.pid())) != std::string::npos ? one : two;
  WorkerProcess& other = &victim == &one ? two : one;
  Clock::time_point killed{};
  auto result = session->run(1'000'000, [&](const StepResult& step) {
    if (step.iteration == 5) {
      killed = Clock::now();
      victim.kill();
    }
    return true;
  });
  CHECK(Clock::now() - killed < 2s);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().kind == ErrorKind::DeviceLost);
  CHECK(result.error().message == name + " with device 1 was lost");
  CHECK(session->step().error() == result.error());
  CHECK(other.wait() == 1);
  CHECK(other.output().find(name + " with device 1 was lost") != std::string::npos);
}

TEST_CASE(
    "a worker that hangs ends the run after its deadline, by name, and itself once it wakes") {
  auto with = with_workers(2, 1);
  with.deadline = 500ms;
  with.transport = GENERATE(TransportKind::Auto, TransportKind::UcxTcp);
  const std::string strategy = GENERATE("dp:2", "1f1b:2");
  WorkerProcess worker({with.listen});
  auto session = open(strategy, with);
  const auto name = session->metrics().devices[1].process;
  Clock::time_point stopped{};
  auto result = session->run(1'000'000, [&](const StepResult& step) {
    if (step.iteration == 5) {
      stopped = Clock::now();
      worker.kill(SIGSTOP);
    }
    return true;
  });
  CHECK(Clock::now() - stopped < 5s);
  REQUIRE_FALSE(result.ok());
  INFO(result.error().to_string());
  CHECK(result.error().kind == ErrorKind::Timeout);
  CHECK(result.error().message.find(name + " with device 1 did not answer: ") == 0);
  CHECK(result.error().where.find("device 0") == 0);
  CHECK(session->step().error() == result.error());
  const auto ends = Clock::now();
  session.reset();
  CHECK(Clock::now() - ends < 3s);
  worker.kill(SIGCONT);
  CHECK(worker.wait() == 1);
}

TEST_CASE("a killed worker is noticed when nothing runs") {
  auto with = with_workers(2, 1);
  WorkerProcess worker({with.listen});
  auto session = open("dp:2", with);
  losses(*session, 1);
  worker.kill();
  auto begun = Clock::now();
  auto step = session->step();
  CHECK(Clock::now() - begun < 2s);
  REQUIRE_FALSE(step.ok());
  CHECK(step.error().message.find("with device 1 was lost") != std::string::npos);
}

TEST_CASE("a worker whose session dies ends with DeviceLost") {
  auto with = with_workers(2, 1);
  WorkerProcess worker({with.listen});
  WorkerProcess session({with.listen, "--session", kModel});
  CHECK(session.output() == "training\n"); // waits for it
  session.kill();
  CHECK(worker.wait(5s) == 1);
  CHECK(worker.output().find("the session at " + with.listen + " was lost") != std::string::npos);
}

TEST_CASE("workers that do not fit are refused on both sides") {
  auto with = with_workers(2, 1);
  Lines log;
  with.log = log.sink();
  std::vector<std::string> arguments{with.listen};
  std::string reason;
  SECTION("another version") {
    arguments.insert(arguments.end(), {"--version", "9.9"});
    reason = "the worker is piper 9.9, the session is piper ";
  }
  SECTION("another model by name") {
    arguments.insert(arguments.end(), {"--insist", "gpt", "{}"});
    reason = "the worker insists on model 'gpt', the session trains 'mlp'";
  }
  SECTION("another model by what it is") {
    arguments.push_back("--other");
    reason = "the worker's model 'mlp' is ";
  }
  WorkerProcess wrong(arguments);
  auto session =
      std::async(std::launch::async, [&] { return Session::create(mlp(), named("dp:2"), with); });
  CHECK(wrong.wait(20s) == 1);
  auto printed = wrong.output();
  INFO(printed);
  CHECK(printed.find(reason) != std::string::npos);
  // The place is still free for one that fits.
  WorkerProcess right({with.listen});
  auto joined = session.get();
  REQUIRE(joined.ok());
  CHECK(log.contain(reason));
  CHECK((*joined)->step().ok());
}

TEST_CASE("a port in use is named") {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  auto with = with_workers(2, 1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port =
      htons(static_cast<uint16_t>(std::stoi(with.listen.substr(with.listen.find(':') + 1))));
  REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(fd, 1) == 0);
  auto session = Session::create(mlp(), named("dp:2"), with);
  close(fd);
  REQUIRE_FALSE(session.ok());
  CHECK(session.error().kind == ErrorKind::User);
  CHECK(session.error().message.find("cannot listen at " + with.listen) == 0);
}

TEST_CASE("neither side waits for the other without end") {
  auto with = with_workers(3, 2);
  with.join_timeout = 1s;
  WorkerProcess one({with.listen, "--timeout", "500"});
  auto begun = Clock::now();
  SECTION("the session") {
    auto session = Session::create(mlp(), named("dp:1x1f1b:3"), with);
    CHECK(Clock::now() - begun < 5s);
    REQUIRE_FALSE(session.ok());
    CHECK(session.error().kind == ErrorKind::Timeout);
    CHECK(session.error().message.find("did not join within 1000 ms") != std::string::npos);
    CHECK(one.wait() == 1);
  }
  SECTION("the worker") {
    CHECK(one.wait(10s) == 1);
    CHECK(one.output().find("no session answered at " + with.listen + " within 500 ms") !=
          std::string::npos);
  }
}
