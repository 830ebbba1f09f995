#include "tools/piper/workers.h"

namespace piper::cli {

void start_workers(uint32_t processes, SessionOptions& options, Processes& workers) {
  if (processes == 1)
    return;
  options.workers += processes - 1;
  options.on_listening = [processes, &workers](const std::string& address) -> Result<void> {
    for (uint32_t i = 1; i < processes; ++i)
      PIPER_CHECK_OK(workers.start_self({"worker", "--join", address}));
    return {};
  };
}

} // namespace piper::cli
