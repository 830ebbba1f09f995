#include "processes.h"

#include <csignal>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace piper::transport::testing {

using namespace std::chrono_literals;

PeerProcess::PeerProcess(UcxMode mode, const std::string& name,
                         const std::vector<DeviceIndex>& devices,
                         const std::vector<std::vector<DeviceIndex>>& others) {
  std::vector<std::string> arguments = {PIPER_BIN_DIR "/transport_peer",
                                        mode == UcxMode::Tcp ? "tcp" : "shm", name,
                                        fmt::format("{}", fmt::join(devices, ","))};
  for (const auto& other : others)
    arguments.push_back(fmt::format("{}", fmt::join(other, ",")));
  std::vector<char*> argv;
  for (auto& argument : arguments)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0 || pipe2(from_child, O_CLOEXEC) != 0)
    return;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0)
    pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  in_ = to_child[1];
  out_ = from_child[0];
}

PeerProcess::~PeerProcess() {
  kill();
  close(in_);
  close(out_);
}

void PeerProcess::kill() {
  if (pid_ < 0)
    return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool PeerProcess::fill(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  pollfd fd{out_, POLLIN, 0};
  if (poll(&fd, 1, std::max<int>(0, static_cast<int>(left.count()))) <= 0)
    return false;
  char chunk[4096];
  const ssize_t n = read(out_, chunk, sizeof(chunk));
  if (n <= 0)
    return false;
  buffer_.append(chunk, static_cast<size_t>(n));
  return true;
}

std::string PeerProcess::read_line() {
  const auto deadline = in(20s);
  size_t end;
  while ((end = buffer_.find('\n')) == std::string::npos)
    if (!fill(deadline))
      return "";
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

std::string PeerProcess::read_rest(std::chrono::milliseconds limit) {
  const auto deadline = in(limit);
  while (fill(deadline)) {
  }
  return std::exchange(buffer_, {});
}

void PeerProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] auto n = write(in_, text.data(), text.size());
}

} // namespace piper::transport::testing
