#include "actors/control.h"

#include "actors/host_port.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <mutex>
#include <optional>
#include <thread>

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using json = nlohmann::ordered_json;

namespace piper {
namespace {

constexpr const char* kNameField = "Strategy-Name";

std::string to_json(const Error& error) {
  return json{{"kind", to_string(error.kind)},
              {"message", error.message},
              {"where", error.where},
              {"hint", error.hint}}
      .dump();
}

Error parse_error(const std::string& body) {
  auto parsed = json::parse(body, nullptr, false);
  Error error{ErrorKind::Internal, body, {}, {}};
  if (!parsed.is_object())
    return error;
  error.kind = parse_error_kind(parsed.value("kind", "")).value_or(ErrorKind::Internal);
  error.message = parsed.value("message", body);
  error.where = parsed.value("where", "");
  error.hint = parsed.value("hint", "");
  return error;
}

json change_json(const Change& c) {
  return {{"from", c.from},
          {"to", c.to},
          {"epoch", c.epoch},
          {"iteration", c.iteration},
          {"compile_seconds", c.compile_seconds},
          {"prepare_seconds", c.prepare_seconds},
          {"pause_seconds", c.pause_seconds},
          {"bytes_moved", c.bytes_moved}};
}

} // namespace

namespace actors {

std::string to_json(const Change& change) {
  return change_json(change).dump();
}

std::string to_json(const Metrics& metrics) {
  json changes = json::array(), waiting = json::array(), devices = json::array();
  for (const Change& change : metrics.changes)
    changes.push_back(change_json(change));
  for (const WaitingChange& w : metrics.waiting)
    waiting.push_back({{"to", w.to}, {"at", w.at ? json(*w.at) : json(nullptr)}});
  for (const DeviceReport& d : metrics.devices)
    devices.push_back({{"device", d.device},
                       {"process", d.process},
                       {"role", d.role},
                       {"peak_bytes", d.peak_bytes},
                       {"offloaded_bytes", d.offloaded_bytes},
                       {"busy_seconds", d.busy_seconds},
                       {"idle_seconds", d.idle_seconds},
                       {"bytes_sent", d.bytes_sent}});
  return json{{"iterations", metrics.iterations},
              {"loss", metrics.loss},
              {"epoch", metrics.epoch},
              {"strategy", metrics.strategy},
              {"changes", changes},
              {"waiting", waiting},
              {"devices", devices}}
      .dump();
}

struct ControlPage::Impl {
  /// What a request waits for. Owned by its coroutine, and so by `io`.
  struct Reply {
    explicit Reply(asio::io_context& io) : woken(io, asio::steady_timer::time_point::max()) {}
    asio::steady_timer woken; ///< cancelled when the result is there
    std::optional<Result<std::string>> result;
  };
  /// How answers from other threads find `io`, for as long as there is one.
  struct Way {
    std::mutex mutex;
    asio::io_context* io = nullptr;
  };

  ~Impl() {
    std::lock_guard lock(way->mutex);
    way->io = nullptr;
  }

  ControlVerbs verbs;
  std::shared_ptr<Way> way = std::make_shared<Way>();
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  std::string host;
  std::thread thread;

  asio::awaitable<void> serve() {
    for (;;) {
      boost::system::error_code failed;
      tcp::socket socket =
          co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failed));
      if (!failed)
        asio::co_spawn(io, talk(beast::tcp_stream(std::move(socket))), asio::detached);
      else if (failed == asio::error::operation_aborted)
        co_return;
    }
  }

  asio::awaitable<void> talk(beast::tcp_stream stream) {
    try {
      beast::flat_buffer buffer;
      for (;;) {
        http::request_parser<http::string_body> parser;
        parser.body_limit(64 << 20);
        stream.expires_after(std::chrono::seconds(30));
        co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
        stream.expires_never(); // a change takes as long as it takes
        auto request = parser.release();
        auto response = co_await answer(request);
        response.keep_alive(request.keep_alive());
        response.set(http::field::content_type, "application/json");
        response.prepare_payload();
        stream.expires_after(std::chrono::seconds(30));
        co_await http::async_write(stream, response, asio::use_awaitable);
        if (!request.keep_alive())
          co_return;
      }
    } catch (const std::exception&) {
      // The client went away, or sent what is no HTTP: nobody is left to be told.
    }
  }

  /// Puts a result into the reply, if somebody still waits for it.
  ControlVerbs::Done waker(const std::shared_ptr<Reply>& reply) const {
    return [way = way, waiting = std::weak_ptr(reply)](Result<std::string> result) {
      std::lock_guard lock(way->mutex);
      if (way->io)
        asio::post(*way->io, [waiting, result = std::move(result)]() mutable {
          if (auto reply = waiting.lock()) {
            reply->result = std::move(result);
            reply->woken.cancel();
          }
        });
    };
  }

  asio::awaitable<http::response<http::string_body>>
  answer(const http::request<http::string_body>& request) {
    http::response<http::string_body> response{http::status::ok, request.version()};
    const bool get = request.method() == http::verb::get;
    const bool post = request.method() == http::verb::post;
    if (get && request.target() == "/status") {
      response.body() = verbs.status();
    } else if (post && request.target() == "/stop") {
      verbs.stop();
      response.body() = "{}";
    } else if ((post && request.target() == "/apply") || (get && request.target() == "/timeline")) {
      auto reply = std::make_shared<Reply>(io);
      if (get) {
        verbs.timeline(waker(reply));
      } else {
        const std::string name = request[kNameField];
        verbs.apply(name.empty() ? "control" : name, request.body(), waker(reply));
      }
      boost::system::error_code woken;
      if (!reply->result)
        co_await reply->woken.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      const Result<std::string> result =
          reply->result ? *std::move(reply->result)
                        : Error{ErrorKind::Cancelled, "the session has ended", {}, {}};
      if (result.ok()) {
        response.body() = *result;
      } else {
        response.result(http::status::bad_request);
        response.body() = piper::to_json(result.error());
      }
    } else {
      response.result(http::status::not_found);
      response.body() = piper::to_json(
          user_error(std::string(request.method_string()) + " " + std::string(request.target()) +
                         " is nothing to ask for",
                     "control", "GET /status, GET /timeline, POST /apply, POST /stop"));
    }
    co_return response;
  }
};

Result<std::unique_ptr<ControlPage>> ControlPage::open(const std::string& host_port,
                                                       ControlVerbs verbs) {
  PIPER_TRY(auto address, parse_host_port(host_port, "control"));
  auto impl = std::make_unique<Impl>();
  impl->way->io = &impl->io;
  impl->verbs = std::move(verbs);
  impl->host = address.first;
  try {
    tcp::resolver resolver(impl->io);
    tcp::endpoint endpoint =
        *resolver.resolve(address.first, std::to_string(address.second)).begin();
    impl->acceptor.open(endpoint.protocol());
    impl->acceptor.set_option(tcp::acceptor::reuse_address(true));
    impl->acceptor.bind(endpoint);
    impl->acceptor.listen();
  } catch (const boost::system::system_error& e) {
    return user_error("cannot listen at " + host_port + ": " + e.code().message(), "control",
                      "choose another port, or port 0 for a free one");
  }
  asio::co_spawn(impl->io, impl->serve(), asio::detached);
  impl->thread = std::thread([&io = impl->io] { io.run(); });
  return std::unique_ptr<ControlPage>(new ControlPage(std::move(impl)));
}

ControlPage::ControlPage(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlPage::~ControlPage() {
  impl_->io.stop();
  impl_->thread.join();
}

std::string ControlPage::address() const {
  return impl_->host + ":" + std::to_string(impl_->acceptor.local_endpoint().port());
}

} // namespace actors

Result<std::string> control_request(const std::string& host_port, const std::string& verb,
                                    const std::string& body, const std::string& name,
                                    std::chrono::milliseconds timeout) {
  const bool asks = verb == "status" || verb == "timeline";
  if (!asks && verb != "apply" && verb != "stop")
    return user_error("there is no verb '" + verb + "'", "control",
                      "status, timeline, apply or stop");
  PIPER_TRY(auto address, actors::parse_host_port(host_port, "connect"));
  asio::io_context io;
  Result<std::string> result = Error{};
  auto ask = [&]() -> asio::awaitable<void> {
    tcp::resolver resolver(io);
    beast::tcp_stream stream(io);
    stream.expires_after(timeout);
    auto found = co_await resolver.async_resolve(address.first, std::to_string(address.second),
                                                 asio::use_awaitable);
    co_await stream.async_connect(found, asio::use_awaitable);
    http::request<http::string_body> request{asks ? http::verb::get : http::verb::post, "/" + verb,
                                             11, body};
    if (!name.empty())
      request.set(kNameField, name);
    request.set(http::field::host, address.first);
    request.keep_alive(false);
    request.prepare_payload();
    co_await http::async_write(stream, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none); // a timeline is as large as its plans
    co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
    auto response = parser.release();
    if (response.result() == http::status::ok)
      result = std::move(response.body());
    else
      result = parse_error(response.body());
  };
  asio::co_spawn(io, ask(), [&](const std::exception_ptr& thrown) {
    if (!thrown)
      return;
    try {
      std::rethrow_exception(thrown);
    } catch (const boost::system::system_error& e) {
      result = Error{e.code() == beast::error::timeout ? ErrorKind::Timeout : ErrorKind::DeviceLost,
                     "no answer from " + host_port + ": " + e.code().message(), "control",
                     "is a session running there, started with --control?"};
    } catch (const std::exception& e) {
      result = internal_error(e.what(), "control");
    }
  });
  io.run();
  return result;
}

} // namespace piper
