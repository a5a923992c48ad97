#include "losses/vector_math.h"

#include <ATen/ATen.h>

#include <array>

namespace distill::losses {
namespace {

// Calls a function with so few numbers that libtorch uses one thread, in memory that no allocator counts.
template <typename T>
void call_each_function(at::ScalarType dtype) {
  std::array<T, 8> numbers{};
  at::Tensor x = at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, dtype);
  for (const auto function : {at::tanh_, at::exp_, at::cos_, at::sin_}) {
    function(x);
  }
}

} // namespace

void prepare_vector_math() {
  [[maybe_unused]] static const bool prepared = [] {
    call_each_function<float>(at::kFloat);
    call_each_function<double>(at::kDouble);
    return true;
  }();
}

} // namespace distill::losses
