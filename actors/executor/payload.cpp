#include "actors/executor/payload.h"

namespace piper::executor {

namespace {
using TensorPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

void release_tensor(void* token) {
  TensorPtr::reclaim(static_cast<c10::TensorImpl*>(token));
}
} // namespace

transport::Payload payload_of(at::Tensor owner, void* data, size_t bytes) {
  return {data, bytes, std::move(owner).unsafeReleaseTensorImpl(), &release_tensor};
}

at::Tensor owner_of(transport::Payload payload) {
  return at::Tensor(TensorPtr::reclaim(static_cast<c10::TensorImpl*>(payload.take_token())));
}

} // namespace piper::executor
