#include "tools/piper/processes.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace piper::cli {

namespace {

constexpr std::chrono::seconds kGrace{2}; ///< for a child to end after its session said goodbye
constexpr const char* kSelf = "/proc/self/exe";

/// `out` becomes the child's standard output.
Result<pid_t> start(const std::string& program, const std::vector<std::string>& arguments,
                    int out) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0)
    return Error{ErrorKind::Internal, fmt::format("cannot start a process: {}", strerror(errno)),
                 program, ""};
  if (pid == 0) { // only async-signal-safe calls from here on
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) // it ended before the line above
      _exit(1);
    setpgid(0, 0);
    dup2(out, STDOUT_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Result<void> run(const std::string& program, const std::vector<std::string>& arguments) {
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  auto pid = start(program, arguments, null);
  close(null);
  if (!pid)
    return std::move(pid).error();
  if (const int status = wait_for(*pid); status != 0)
    return Error{ErrorKind::Internal, fmt::format("it {}", describe_exit(status)),
                 fmt::format("{} {}", program, fmt::join(arguments, " ")), ""};
  return {};
}

} // namespace

std::string describe_exit(int wait_status) {
  return WIFSIGNALED(wait_status) ? fmt::format("was killed by signal {}", WTERMSIG(wait_status))
                                  : fmt::format("exited with {}", WEXITSTATUS(wait_status));
}

struct Processes::Child {
  pid_t pid = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;
  std::thread reaper;
};

Processes::Processes() = default;

Result<void> Processes::start_self(const std::vector<std::string>& arguments) {
  PIPER_TRY(const pid_t pid, start(kSelf, arguments, STDERR_FILENO));
  auto child = std::make_unique<Child>();
  child->pid = pid;
  child->reaper = std::thread([c = child.get()] {
    // Without reaping yet, so that the pid stays ours until `ended` says otherwise.
    siginfo_t info;
    while (waitid(P_PID, static_cast<id_t>(c->pid), &info, WEXITED | WNOWAIT) < 0 &&
           errno == EINTR) {
    }
    std::lock_guard lock(c->mutex);
    wait_for(c->pid);
    c->ended = true;
    c->changed.notify_all();
  });
  children_.push_back(std::move(child));
  return {};
}

Processes::~Processes() {
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  for (auto& child : children_) {
    {
      std::unique_lock lock(child->mutex);
      if (!child->changed.wait_until(lock, deadline, [&] { return child->ended; }))
        kill(child->pid, SIGKILL);
    }
    child->reaper.join();
  }
}

Result<void> run_self(const std::vector<std::string>& arguments) {
  return run(kSelf, arguments);
}

Result<void> run_program(const std::vector<std::string>& command) {
  return run(command.front(), {command.begin() + 1, command.end()});
}

} // namespace piper::cli
