#include "transport/ucx/worker.h"

#include "transport/prompt.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

namespace piper::transport {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kMajor = 1, kMinor = 22; ///< other versions abort when they meet on one wire
constexpr unsigned kGoodbye = 1;            ///< header: the devices of the process that leaves
constexpr unsigned kRetract = 2;            ///< header: a tag whose messages are to be dropped
constexpr auto kTick = 50ms;
constexpr auto kPatience = 1s; ///< how long a peer may take to end a transfer that it began

Error ucx_error(const char* what, ucs_status_t status) {
  return internal_error(fmt::format("{}: {}", what, ucs_status_string(status)), "ucx");
}

} // namespace

// ---------------------------------------------------------------- opening and connecting

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const UcxOptions& options) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(options));
  PIPER_CHECK_OK(worker->open(options));
  return worker;
}

Result<void> UcxWorker::open(const UcxOptions& options) {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  if (major != kMajor || minor != kMinor)
    return user_error(
        fmt::format("UCX {}.{} is loaded, but {}.{} is needed", major, minor, kMajor, kMinor),
        "ucx", "check the run path and LD_LIBRARY_PATH");
  // UCX reports lost peers on stderr; they are our errors to report. A user's own level stands.
  if (!std::getenv("UCX_LOG_LEVEL"))
    ucs_global_opts_set_value("LOG_LEVEL", "FATAL");

  ucp_config_t* config = nullptr;
  if (auto status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK)
    return ucx_error("reading the configuration", status);
  const char* tls = options.mode == UcxMode::Tcp            ? "tcp,self"
                    : options.mode == UcxMode::SharedMemory ? "posix,sysv,self"
                                                            : "posix,sysv,tcp,self";
  const std::string keepalive = fmt::format("{}ms", options.keepalive.count());
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", tls},
      {"KEEPALIVE_INTERVAL", keepalive.c_str()},
      {"MM_ERROR_HANDLING", "y"}, // or shared memory is not used with peer failure handling
      {"TCP_TX_SEG_SIZE", "512K"},
      {"TCP_RX_SEG_SIZE", "512K"},
      // A cut link is noticed in seconds while there is traffic.
      {"TCP_KEEPIDLE", "1s"},
      {"TCP_KEEPINTVL", "1s"},
      {"TCP_KEEPCNT", "3"},
      {"TCP_USER_TIMEOUT", "3s"},
  };
  for (auto [name, value] : settings)
    if (auto status = ucp_config_modify(config, name, value); status != UCS_OK) {
      ucp_config_release(config);
      return ucx_error(name, status);
    }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const auto status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK)
    return ucx_error("ucp_init", status);

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (auto s = ucp_worker_create(context_, &worker_params, &worker_); s != UCS_OK)
    return ucx_error("ucp_worker_create", s);
  if (auto s = ucp_worker_get_efd(worker_, &worker_fd_); s != UCS_OK)
    return ucx_error("ucp_worker_get_efd", s);
  kick_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (kick_fd_ < 0)
    return internal_error(fmt::format("eventfd: {}", std::strerror(errno)), "ucx");
  ucp_address_t* address = nullptr;
  size_t length = 0;
  if (auto s = ucp_worker_get_address(worker_, &address, &length); s != UCS_OK)
    return ucx_error("ucp_worker_get_address", s);
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  for (auto [id, handler] :
       {std::pair(kGoodbye, &UcxWorker::on_goodbye), std::pair(kRetract, &UcxWorker::on_retract)}) {
    ucp_am_handler_param_t am{};
    am.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_ARG;
    am.id = id;
    am.cb = handler;
    am.arg = this;
    if (auto s = ucp_worker_set_am_recv_handler(worker_, &am); s != UCS_OK)
      return ucx_error("ucp_worker_set_am_recv_handler", s);
  }
  background_ = std::thread([this] { run_background(); });
  return {};
}

Result<UcxConnection*> UcxWorker::connect(const std::string& address,
                                          std::vector<DeviceIndex> devices, bool own) {
  auto l = lock();
  auto connection = std::make_unique<UcxConnection>();
  connection->worker = this;
  connection->devices = std::move(devices);
  connection->own = own;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  // The loopback of UCX knows no peer failure, nor can it have one.
  params.err_mode = own ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxWorker::on_failure, connection.get()};
  if (auto s = ucp_ep_create(worker_, &params, &connection->ep); s != UCS_OK)
    return Error{ErrorKind::DeviceLost,
                 fmt::format("cannot connect to device {}: {}", connection->devices.front(),
                             ucs_status_string(s)),
                 "ucx", "are both processes on the network, or the host, that the mode asks for?"};
  connections_.push_back(std::move(connection));
  return connections_.back().get();
}

// ---------------------------------------------------------------- posting and completing

void UcxWorker::wake(Event& event) {
  const bool of_leader = &event == leaders_event_;
  event.set();
  if (of_leader && asleep_)
    kick();
}

void UcxWorker::complete(UcxOp& op, ucs_status_t status, size_t length) {
  op.status = status;
  op.length = length;
  op.request = nullptr;
  *op.link = op.next;
  if (op.next)
    op.next->link = op.link;
  --outstanding_;
  wake(op.done); // from here on the op belongs to its waiter
}

void UcxWorker::posted(UcxOp& op, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_ERR(request))
    complete(op, UCS_PTR_STATUS(request), 0);
  else
    op.request = request;
}

namespace {

void enlist(UcxOp& op, UcxOp*& list) {
  op.next = list;
  op.link = &list;
  if (list)
    list->link = &op.next;
  list = &op;
}

} // namespace

void UcxWorker::post_recv(const Lock&, UcxOp& op, void* data, size_t bytes) {
  op.is_send = false;
  op.worker = this;
  enlist(op, ops_);
  ++outstanding_;
  ucp_tag_recv_info_t info{};
  // UCX does not say how long a message was that had arrived and does not fit.
  if (ucp_tag_probe_nb(worker_, op.tag, UINT64_MAX, 0, &info) && info.length > bytes) {
    drop_message(op.tag);
    return complete(op, UCS_ERR_MESSAGE_TRUNCATED, info.length);
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_RECV_INFO;
  param.recv_info.tag_info = &info;
  param.user_data = &op;
  param.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* got,
                     void* user_data) {
    auto* done = static_cast<UcxOp*>(user_data);
    ucp_request_free(request);
    done->worker->complete(*done, status, got ? got->length : 0);
  };
  auto* request = ucp_tag_recv_nbx(worker_, data, bytes, op.tag, UINT64_MAX, &param);
  if (!request)
    return complete(op, UCS_OK, info.length);
  if (UCS_PTR_IS_ERR(request))
    return complete(op, UCS_PTR_STATUS(request), info.length);
  op.request = request;
  // What a lost peer sent before it went has been taken; no more will come.
  if (op.connection->state != UcxConnection::State::Alive)
    ucp_request_cancel(worker_, request);
}

void UcxWorker::post_send(const Lock&, UcxOp& op, const void* data, size_t bytes) {
  op.is_send = true;
  op.worker = this;
  enlist(op, ops_);
  ++outstanding_;
  if (!op.connection->ep)
    return complete(op, UCS_ERR_CONNECTION_RESET, 0);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = &op;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    auto* done = static_cast<UcxOp*>(user_data);
    ucp_request_free(request);
    done->worker->complete(*done, status, 0);
  };
  auto* request = ucp_tag_send_nbx(op.connection->ep, data, bytes, op.tag, &param);
  if (!request)
    return complete(op, UCS_OK, 0);
  posted(op, request);
}

UcxSend* UcxWorker::allocate_send(const Lock&) {
  UcxSend* send = free_sends_;
  if (!send)
    return new UcxSend();
  free_sends_ = send->next;
  return send;
}

void UcxWorker::complete(UcxSend* send, ucs_status_t status) {
  { Payload released = std::move(send->payload); }
  send->finished(*send, status);
  send->next = free_sends_;
  free_sends_ = send;
  --outstanding_;
}

void UcxWorker::send(const Lock&, UcxSend* send, uint64_t tag) {
  send->worker = this;
  ++outstanding_;
  if (!send->connection->ep)
    return complete(send, UCS_ERR_CONNECTION_RESET);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = send;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    auto* done = static_cast<UcxSend*>(user_data);
    ucp_request_free(request);
    done->worker->complete(done, status);
  };
  auto* request = ucp_tag_send_nbx(send->connection->ep, send->payload.data(),
                                   send->payload.bytes(), tag, &param);
  if (!request)
    complete(send, UCS_OK);
  else if (UCS_PTR_IS_ERR(request))
    complete(send, UCS_PTR_STATUS(request));
}

void UcxWorker::abandon(const Lock&, UcxOp& op) {
  if (op.done.is_set())
    return;
  op.give_up_at = std::min(op.give_up_at, Clock::now() + kPatience);
  if (op.is_send)
    send_note(*op.connection, kRetract, &op.tag, sizeof(op.tag));
  else
    ucp_request_cancel(worker_, op.request);
}

void UcxWorker::abandon(const Lock& l, const void* owner) {
  // A cancelled operation unlinks itself, at once or later.
  for (UcxOp *op = ops_, *next; op; op = next) {
    next = op->next;
    if (op->owner == owner)
      abandon(l, *op);
  }
}

bool UcxWorker::drop_message(uint64_t tag, uint64_t mask) {
  ucp_tag_recv_info_t info;
  auto message = ucp_tag_probe_nb(worker_, tag, mask, 1, &info);
  if (!message)
    return false;
  // Receiving nothing of it ends it for the sender too.
  static char nothing;
  ucp_request_param_t param{};
  auto* request = ucp_tag_msg_recv_nbx(worker_, &nothing, 0, message, &param);
  if (UCS_PTR_IS_PTR(request))
    ucp_request_free(request);
  return true;
}

void UcxWorker::drop_messages(const Lock&, const TagPattern& pattern) {
  while (drop_message(pattern.value, pattern.mask)) {
  }
}

void UcxWorker::send_note(UcxConnection& connection, unsigned id, const void* header,
                          size_t bytes) {
  if (!connection.ep)
    return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
  auto* request = ucp_am_send_nbx(connection.ep, id, header, bytes, nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request))
    ucp_request_free(request); // it completes by itself
}

// ---------------------------------------------------------------- failures

void UcxWorker::on_failure(void* connection, ucp_ep_h, ucs_status_t status) {
  auto* c = static_cast<UcxConnection*>(connection);
  if (c->state == UcxConnection::State::Alive) {
    c->state = UcxConnection::State::Lost;
    c->why = ucs_status_string(status);
  }
  c->worker->failed_.push_back(c);
}

ucs_status_t UcxWorker::on_goodbye(void* worker, const void* header, size_t header_length, void*,
                                   size_t, const ucp_am_recv_param_t*) {
  auto* self = static_cast<UcxWorker*>(worker);
  DeviceIndex first = 0;
  if (header_length < sizeof(first))
    return UCS_OK;
  std::memcpy(&first, header, sizeof(first));
  for (auto& c : self->connections_)
    if (c->state == UcxConnection::State::Alive && c->devices.front() == first) {
      c->state = UcxConnection::State::Left;
      c->why = "its process has closed the transport";
      self->failed_.push_back(c.get());
    }
  return UCS_OK;
}

ucs_status_t UcxWorker::on_retract(void* worker, const void* header, size_t header_length, void*,
                                   size_t, const ucp_am_recv_param_t*) {
  uint64_t tag = 0;
  if (header_length == sizeof(tag)) {
    std::memcpy(&tag, header, sizeof(tag));
    while (static_cast<UcxWorker*>(worker)->drop_message(tag)) {
    }
  }
  return UCS_OK;
}

void UcxWorker::give_up(const Lock& l, UcxConnection& connection, const char* why) {
  if (connection.state == UcxConnection::State::Alive) {
    connection.state = UcxConnection::State::Lost;
    connection.why = why;
  }
  failed_.push_back(&connection);
  settle(l);
}

void UcxWorker::close(UcxConnection& connection, bool force) {
  if (!connection.ep)
    return;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    ucp_request_free(request);
    --static_cast<UcxWorker*>(user_data)->closing_;
  };
  auto* request = ucp_ep_close_nbx(connection.ep, &param);
  connection.ep = nullptr;
  if (UCS_PTR_IS_PTR(request))
    ++closing_;
}

/// Closes what failed, which a callback may not.
void UcxWorker::settle(const Lock&) {
  for (size_t i = 0; i < failed_.size(); ++i) { // closing may add to it
    UcxConnection* c = failed_[i];
    for (UcxOp *op = ops_, *next; op; op = next) {
      next = op->next;
      if (op->connection == c && !op->is_send && op->request)
        ucp_request_cancel(worker_, op->request);
    }
    close(*c, true);
  }
  failed_.clear();
}

void UcxWorker::end(std::span<UcxOp> ops) {
  {
    auto l = lock();
    for (UcxOp& op : ops)
      if (op.worker) // was posted
        abandon(l, op);
  }
  for (UcxOp& op : ops)
    if (op.worker)
      wait(op.done, Deadline::max());
}

void UcxWorker::tick(const Lock& l) {
  const auto now = Clock::now();
  // Giving up ends operations, which changes the list.
  for (bool again = true; again;) {
    again = false;
    for (UcxOp* op = ops_; op && !again; op = op->next)
      if (now >= op->give_up_at && op->connection->ep) {
        give_up(l, *op->connection, "it does not answer");
        again = true;
      }
  }
  if (on_tick)
    on_tick(l);
}

// ---------------------------------------------------------------- driving

unsigned UcxWorker::progress(const Lock& l) {
  unsigned total = 0;
  // Bounded, so that others get the mutex while a lot comes in.
  while (total < 256) {
    const unsigned n = ucp_worker_progress(worker_);
    if (n == 0)
      break;
    total += n;
  }
  if (!failed_.empty())
    settle(l);
  return total;
}

void UcxWorker::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] auto n = write(kick_fd_, &one, sizeof(one));
}

bool UcxWorker::wait(Event& event, Deadline deadline) {
  if (event.is_set())
    return true;
  ++polling_;
  for (auto end = Clock::now() + spinner_.limit();;) {
    unsigned n = 0;
    if (Lock l(mutex_, std::try_to_lock); l.owns_lock())
      n = progress(l);
    if (event.is_set())
      break;
    const auto now = Clock::now();
    if (now >= deadline)
      break;
    if (n > 0)
      end = now + spinner_.limit();
    else if (now >= end)
      break;
    else
      spinner_.yield();
  }
  --polling_;
  if (!event.is_set() && Clock::now() < deadline) {
    if (!leading_.exchange(true)) {
      {
        auto l = lock();
        leaders_event_ = &event;
      }
      lead([&] { return event.is_set(); }, deadline);
      {
        auto l = lock();
        leaders_event_ = nullptr;
      }
      leading_ = false;
    } else {
      // Someone else drives, and hands over to the background thread when done before us.
      event.sleep_until(deadline);
    }
  }
  hand_over();
  return event.is_set();
}

void UcxWorker::lead(const std::function<bool()>& stop, Deadline deadline) {
  constexpr auto kShortNap = 50us, kLongNap = 1000us;
  constexpr int kBusyRounds = 16;
  auto dry_since = Deadline::min(); // the caller has polled already
  auto nap = kShortNap;
  int busy = 0;
  while (!stop()) {
    auto l = lock();
    const unsigned n = progress(l);
    const auto now = Clock::now();
    if (stop() || now >= deadline)
      return;
    if (n > 0) {
      dry_since = now;
      nap = kShortNap;
      busy = 0;
      continue;
    }
    if (now < dry_since + spinner_.limit()) {
      l.unlock();
      spinner_.yield();
      continue;
    }
    const bool armed = ucp_worker_arm(worker_) == UCS_OK;
    // Not armed: something came just now, or a send waits for room in shared memory, of which no
    // descriptor tells. So look again a few times, then nap.
    if (!armed && ++busy < kBusyRounds)
      continue;
    asleep_ = true;
    l.unlock();
    auto limit = std::min<Clock::duration>(deadline - now, kTick);
    if (!armed) {
      limit = std::min<Clock::duration>(limit, nap);
      nap = std::min(2 * nap, kLongNap);
    }
    const timespec time{0, std::chrono::nanoseconds(limit).count()};
    pollfd fds[] = {{kick_fd_, POLLIN, 0}, {worker_fd_, POLLIN, 0}};
    ppoll(fds, armed ? 2 : 1, &time, nullptr);
    asleep_ = false;
    if (fds[0].revents) {
      uint64_t count;
      [[maybe_unused]] auto read_bytes = read(kick_fd_, &count, sizeof(count));
    }
    if (armed)
      dry_since = Clock::now();
  }
}

void UcxWorker::drive_in_background() {
  if (outstanding_ > 0 && asleep_)
    kick(); // what waits for room in shared memory has no descriptor
  hand_over();
}

void UcxWorker::hand_over() {
  if (outstanding_ == 0 || leading_ || polling_ > 0)
    return;
  std::lock_guard guard(background_mutex_);
  if (background_wanted_)
    return;
  background_wanted_ = true;
  background_wake_.notify_one();
}

void UcxWorker::run_background() {
  wake_promptly();
  std::unique_lock guard(background_mutex_);
  while (!stop_) {
    background_wake_.wait_for(guard, kTick, [&] { return stop_ || background_wanted_; });
    if (stop_)
      return;
    background_wanted_ = false;
    guard.unlock();
    {
      auto l = lock();
      progress(l);
      tick(l);
    }
    if (outstanding_ > 0 && !leading_.exchange(true)) {
      lead([&] { return outstanding_ == 0; }, Clock::now() + kTick);
      leading_ = false;
    }
    guard.lock();
    background_wanted_ = background_wanted_ || (outstanding_ > 0 && !leading_);
  }
}

// ---------------------------------------------------------------- closing

bool UcxWorker::drive_until(const std::function<bool()>& done, Deadline deadline) {
  while (true) {
    {
      auto l = lock();
      progress(l);
      if (done())
        return true;
    }
    if (Clock::now() >= deadline)
      return false;
    std::this_thread::sleep_for(20us);
  }
}

void UcxWorker::say_goodbye(std::chrono::milliseconds linger) {
  const auto deadline = Clock::now() + linger;
  const bool all_sent = drive_until([&] { return outstanding_ == 0; }, deadline);
  {
    auto l = lock();
    std::vector<DeviceIndex> own;
    for (auto& c : connections_)
      if (c->own)
        own = c->devices;
    for (auto& c : connections_)
      if (!c->own && c->state == UcxConnection::State::Alive)
        send_note(*c, kGoodbye, own.data(), own.size() * sizeof(DeviceIndex));
    for (auto& c : connections_)
      close(*c, !all_sent); // what nobody took ends only by force
  }
  drive_until([&] { return closing_ == 0; }, std::max(deadline, Clock::now() + 100ms));
}

UcxWorker::~UcxWorker() {
  if (background_.joinable()) {
    {
      std::lock_guard guard(background_mutex_);
      stop_ = true;
    }
    background_wake_.notify_one();
    background_.join();
    say_goodbye(linger_);
  }
  if (worker_)
    ucp_worker_destroy(worker_);
  if (context_)
    ucp_cleanup(context_);
  if (kick_fd_ >= 0)
    ::close(kick_fd_);
  while (UcxSend* send = free_sends_) {
    free_sends_ = send->next;
    delete send;
  }
}

} // namespace piper::transport
