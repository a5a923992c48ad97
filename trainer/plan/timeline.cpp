#include "trainer/plan/timeline.h"

namespace distill::plan {

void Buffer::reset() {
  if (timeline_ != nullptr) {
    timeline_->add(category_, -timeline_->allocator_->size(block_));
    timeline_->allocator_->release(block_);
    timeline_ = nullptr;
  }
}

void Buffer::label(Category category) {
  if (timeline_ != nullptr) {
    const int64_t bytes = timeline_->allocator_->size(block_);
    timeline_->add(category_, -bytes);
    timeline_->add(category, bytes);
    category_ = category;
    timeline_->changed();
  }
}

Buffer Timeline::allocate(Category category, int64_t bytes) {
  Buffer buffer;
  if (bytes > 0) {
    buffer.timeline_ = this;
    buffer.block_ = allocator_->allocate(bytes);
    buffer.category_ = category;
    add(category, allocator_->size(buffer.block_));
    reserved_peak_ = std::max(reserved_peak_, allocator_->reserved());
    changed();
  }
  return buffer;
}

void Timeline::enter(MemoryPhase phase) {
  phase_ = phase;
  changed();
}

void Timeline::add(Category category, int64_t bytes) {
  use_.now[static_cast<size_t>(category)] += bytes;
  now_ += bytes;
}

void Timeline::changed() {
  device::PhasePeak& peak = use_.phases[static_cast<size_t>(phase_)];
  if (now_ > peak.bytes) {
    peak.bytes = now_;
    peak.at_peak = use_.now;
  }
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    peak.highest[i] = std::max(peak.highest[i], use_.now[i]);
  }
}

} // namespace distill::plan
