#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/sharding/slots.h"

namespace distill::sharding {

// Debugging: whether a gathered unit is the same bits at each of its uses (in the forward pass, in the backward pass,
// when it is released) until its weights change. Checksums are made and compared on the device; nobody waits for them.
class SlotChecks {
 public:
  explicit SlotChecks(at::Device device);

  // For messages: units of `model` are called "student block 3" after `name` and the units' own names.
  void name_units(const void* model, const std::string& name, const std::vector<std::string>& units);

  // Queues the comparison of the unit's checksum with the one it had before, on the current stream.
  void check(UnitKey key, const at::Tensor& whole);
  // The model's weights change.
  void forget(const void* model);

  // int64 [1] on the device: 0 as long as all checksums agreed, else 1 + the number of the first unit that differed.
  const at::Tensor& failed_unit() const {
    return failed_unit_;
  }
  // Name of a unit that failed_unit() gave.
  std::string describe(int64_t failed_unit) const;

 private:
  struct Unit {
    UnitKey key;
    std::string name;
    at::Tensor checksums; // int64, one for each kWordsPerSum words; undefined: not seen since the weights changed
  };
  std::vector<Unit> units_;
  at::Tensor failed_unit_;
};

} // namespace distill::sharding
