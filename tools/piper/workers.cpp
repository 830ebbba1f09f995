#include "tools/piper/workers.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>

namespace piper::cli {

namespace {

/// A port that nobody listens on. The session opens it a moment later; workers have to know it
/// before the session, which waits for them, can tell.
Result<uint16_t> free_port() {
  using boost::asio::ip::tcp;
  boost::asio::io_context context;
  boost::system::error_code error;
  tcp::acceptor acceptor(context);
  const tcp::endpoint any(boost::asio::ip::address_v4::loopback(), 0);
  acceptor.open(any.protocol(), error);
  if (!error)
    acceptor.bind(any, error);
  if (error)
    return Error{ErrorKind::Internal, fmt::format("no free port: {}", error.message()),
                 "--processes", ""};
  return acceptor.local_endpoint().port();
}

} // namespace

Result<void> start_workers(uint32_t processes, SessionOptions& options, Processes& workers) {
  if (processes == 1)
    return {};
  if (options.listen.ends_with(":0")) {
    PIPER_TRY(const uint16_t port, free_port());
    options.listen =
        fmt::format("{}:{}", options.listen.substr(0, options.listen.size() - 2), port);
  }
  options.workers += processes - 1;
  for (uint32_t i = 1; i < processes; ++i)
    PIPER_CHECK_OK(workers.start_self({"worker", "--join", options.listen}));
  return {};
}

} // namespace piper::cli
