#include "tools/bench/transport.h"

#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace piper::cli {

namespace {

Error os_error(const char* what) {
  return {ErrorKind::Internal, fmt::format("{}: {}", what, std::strerror(errno)), "bench transport",
          ""};
}

/// Sends our address through the socket, and returns the other process's. Both fit its buffer.
Result<std::string> exchange(int socket, const std::string& address) {
  if (send(socket, address.data(), address.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(address.size()))
    return os_error("cannot send the address");
  std::string other(64 * 1024, '\0');
  const ssize_t size = recv(socket, other.data(), other.size(), 0);
  if (size <= 0)
    return os_error("no address from the other process");
  other.resize(static_cast<size_t>(size));
  return other;
}

Result<std::vector<transport::BenchRow>> run_rank(ir::DeviceIndex rank, int socket,
                                                  transport::UcxMode mode,
                                                  std::chrono::milliseconds per_row) {
  PIPER_TRY(const auto fabric, transport::UcxFabric::create({.devices = {rank}, .mode = mode}));
  PIPER_TRY(std::string address, exchange(socket, fabric->address()));
  const transport::UcxPeer peer{std::move(address), {1 - rank}};
  PIPER_CHECK_OK(fabric->connect({&peer, 1}));
  return transport::run_transport_bench_rank(fabric->endpoint(rank),
                                             transport::default_bench_sizes(), per_row);
}

} // namespace

Result<std::vector<transport::BenchRow>> measure_transport(transport::UcxMode mode,
                                                           std::chrono::milliseconds per_row) {
  int sockets[2]; // of packets, so that an address arrives whole
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
    return os_error("no socket pair");
  const pid_t child = fork();
  if (child < 0)
    return os_error("cannot fork");
  close(sockets[child == 0 ? 0 : 1]);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(run_rank(1, sockets[1], mode, per_row).ok() ? 0 : 1);
  }
  auto rows = run_rank(0, sockets[0], mode, per_row);
  close(sockets[0]);
  if (!rows.ok())
    kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return rows;
}

Result<void> bench_transport(transport::UcxMode mode, std::chrono::milliseconds per_row) {
  PIPER_TRY(const auto rows, measure_transport(mode, per_row));
  Table table({"operation", "size", "best us", "median us", "GB/s"});
  for (const auto& row : rows)
    table.row({row.op, human_bytes(static_cast<double>(row.bytes)),
               fmt::format("{:.2f}", row.best_seconds * 1e6),
               fmt::format("{:.2f}", row.median_seconds * 1e6),
               fmt::format("{:.3f}", row.gigabytes_per_second())});
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
