#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/sharding/slots.h"

namespace distill::sharding {

// A debugging aid that checks that a gathered unit is bit for bit the same at each of its uses (in the forward pass, in
// the backward pass, when it is released) until its weights change. Checksums are computed and compared on the device,
// without a wait on the host.
class SlotChecks {
 public:
  explicit SlotChecks(at::Device device);

  // Sets the names of a model's units in messages: `name` and the unit's own name, such as "student block 3".
  void name_units(const void* model, const std::string& name, const std::vector<std::string>& units);

  // Queues, on the current stream, the comparison of the unit's checksum with the previous one.
  void check(UnitKey key, const at::Tensor& whole);
  // Call this when the model's weights change.
  void forget(const void* model);

  // int64 [1] on the device: 0 as long as all checksums agreed, else 1 + the number of the first unit that differed.
  const at::Tensor& failed_unit() const {
    return failed_unit_;
  }
  // Returns the name of the unit that a value of failed_unit() stands for.
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
