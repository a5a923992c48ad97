#include "trainer/optim/square_sum.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>

namespace distill::optim {
namespace {

// Many elements in little memory: one piece of a memory file, mapped again and again, one mapping after the other.
class Repeated {
 public:
  Repeated(const at::Tensor& piece, int64_t times) : bytes_(piece.nbytes() * static_cast<size_t>(times)) {
    const int file = ::memfd_create("square_sum_test", 0);
    EXPECT_EQ(::write(file, piece.const_data_ptr(), piece.nbytes()), static_cast<ssize_t>(piece.nbytes()));
    address_ =
        static_cast<char*>(::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (int64_t i = 0; i < times; ++i) {
      void* at = address_ + static_cast<size_t>(i) * piece.nbytes();
      EXPECT_EQ(::mmap(at, piece.nbytes(), PROT_READ, MAP_SHARED | MAP_FIXED, file, 0), at);
    }
    ::close(file);
    values_ = at::from_blob(address_, {piece.numel() * times}, at::kFloat);
  }
  ~Repeated() {
    ::munmap(address_, bytes_);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  const at::Tensor& values() const {
    return values_;
  }

 private:
  size_t bytes_;
  char* address_ = nullptr;
  at::Tensor values_;
};

double exact(const at::Tensor& piece) {
  return piece.to(at::kDouble).square().sum().item<double>();
}

TEST(SquareSum, OfHalfABillionElementsIsExactToFp64Rounding) {
  at::manual_seed(1);
  const at::Tensor piece = at::randn({1 << 20});
  const Repeated repeated(piece, 500);
  ASSERT_EQ(repeated.values().numel(), 524'288'000);
  const double expected = 500 * exact(piece);
  const double found = square_sum({repeated.values()}).item<double>();
  EXPECT_NEAR(found / expected, 1, 1e-13);
}

TEST(SquareSum, OfBFloat16IsThatOfWhatIsStored) {
  at::manual_seed(4);
  const at::Tensor stored = at::randn({(1 << 17) + 5}).to(at::kBFloat16);
  const double expected = exact(stored) + exact(stored.to(at::kFloat));
  EXPECT_NEAR(square_sum({stored, stored.to(at::kFloat)}).item<double>() / expected, 1, 1e-13);
}

// fp32 would lose the small values next to the large one (6.6e-12 of the sum), and overflow for the largest.
TEST(SquareSum, KeepsSmallValuesNextToLargeOnes) {
  at::Tensor values = at::full({1 << 16}, 1e-4F);
  values[7] = 1e4F;
  const double small = static_cast<double>(1e-4F);
  EXPECT_NEAR(square_sum({values}).item<double>() / (1e8 + (65535 * small * small)), 1, 1e-12);
  const double largest = static_cast<double>(3e38F);
  EXPECT_DOUBLE_EQ(square_sum({at::full({4}, 3e38F)}).item<double>(), 4 * largest * largest);
}

TEST(SquareSum, DoesNotDependOnTheNumberOfThreads) {
  at::manual_seed(2);
  const at::Tensor values = at::randn({3'000'001});
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = square_sum({values}).item<double>();
  at::set_num_threads(4);
  const double four = square_sum({values}).item<double>();
  at::set_num_threads(threads);
  EXPECT_EQ(one, four);
}

TEST(SquareSum, OfShardsAddsUpToThatOfTheWhole) {
  at::manual_seed(3);
  const at::Tensor values = at::randn({1'000'003});
  const double whole = square_sum({values}).item<double>();
  for (const int64_t ranks : {2, 3, 4}) {
    double sum = 0;
    for (const at::Tensor& shard : values.chunk(ranks)) {
      sum += square_sum({shard.contiguous()}).item<double>();
    }
    EXPECT_NEAR(sum / whole, 1, 1e-14) << ranks << " ranks";
  }
}

TEST(SquareSum, NotFiniteValuesShow) {
  at::Tensor values = at::ones({100});
  values[99] = std::nanf("");
  EXPECT_TRUE(std::isnan(square_sum({at::ones({3}), values}).item<double>()));
  values[99] = INFINITY;
  EXPECT_TRUE(std::isinf(square_sum({values}).item<double>()));
}

TEST(SquareSum, RefusesOtherDtypes) {
  EXPECT_THROW(square_sum({at::ones({3}, at::kDouble)}), c10::Error);
  EXPECT_THROW(square_sum({}), c10::Error);
}

} // namespace
} // namespace distill::optim
