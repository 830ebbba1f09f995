// Peer processes of the transport tests (peer.cpp), which end with the object that started them.
#pragma once

#include "scenarios.h"
#include "transport/ucx/fabric.h"

#include <sys/types.h>

namespace piper::transport::testing {

class PeerProcess {
public:
  /// `others` are the devices of each other process.
  PeerProcess(UcxMode mode, const std::string& name, const std::vector<DeviceIndex>& devices,
              const std::vector<std::vector<DeviceIndex>>& others);
  ~PeerProcess(); ///< kills it if it still runs
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Its next line, without the end; "" after 20 s or at its end.
  std::string read_line();
  /// All that it still prints until it ends, for at most `limit`.
  std::string read_rest(std::chrono::milliseconds limit);
  void write_line(const std::string& line);
  void kill(); ///< SIGKILL, and reaps it

private:
  bool fill(Deadline deadline);
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::string buffer_;
};

} // namespace piper::transport::testing
