#include "plan.h"

#include <algorithm>

namespace onnxfuse {
namespace {

constexpr size_t kDims = 4;  // of an input, on average; shapes with more are planned anew in every call

// Holds the flag, if nobody else does.
class Lock {
 public:
  explicit Lock(std::atomic<bool>& busy) noexcept
      : busy_(busy), holds_(!busy.exchange(true, std::memory_order_acquire)) {}
  ~Lock() {
    if (holds_) busy_.store(false, std::memory_order_release);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  explicit operator bool() const noexcept { return holds_; }

 private:
  std::atomic<bool>& busy_;
  const bool holds_;
};

}  // namespace

LastPlan::LastPlan(size_t inputs) : inputs_(inputs) {
  shapes_.reserve((inputs + 1) * (1 + kDims));
  strided_.reserve(inputs);
}

bool LastPlan::same(const Tensor* inputs) const noexcept {
  const int64_t* shape = shapes_.data();
  for (size_t k = 0; k < inputs_; ++k) {
    const size_t rank = inputs[k].rank;
    if (static_cast<size_t>(*shape++) != rank) return false;
    for (size_t d = 0; d < rank; ++d)
      if (inputs[k].dims[d] != *shape++) return false;
  }
  return true;
}

bool LastPlan::recall(const Tensor* inputs, Plan& plan, Strided* strided, Dims& dims) noexcept {
  const Lock lock(busy_);
  if (!lock || !holds_ || !same(inputs)) return false;
  plan = plan_;
  std::copy(strided_.begin(), strided_.end(), strided);
  dims.resize(rank_);
  std::copy(shapes_.end() - static_cast<ptrdiff_t>(rank_), shapes_.end(), dims.data());
  return true;
}

void LastPlan::keep(const Tensor* inputs, const Plan& plan, const Strided* strided, const Dims& dims) noexcept {
  size_t room = dims.rank();
  for (size_t k = 0; k < inputs_; ++k) room += 1 + inputs[k].rank;
  const Lock lock(busy_);
  if (!lock) return;
  holds_ = room <= shapes_.capacity() && dims.rank() <= Dims::kSmall;
  if (!holds_) return;
  shapes_.clear();
  for (size_t k = 0; k < inputs_; ++k) {
    shapes_.push_back(static_cast<int64_t>(inputs[k].rank));
    shapes_.insert(shapes_.end(), inputs[k].dims, inputs[k].dims + inputs[k].rank);
  }
  rank_ = dims.rank();
  shapes_.insert(shapes_.end(), dims.data(), dims.data() + rank_);
  plan_ = plan;
  strided_.assign(strided, strided + plan.strided_count);
}

}  // namespace onnxfuse
