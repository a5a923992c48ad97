#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace distill::report {

// A series of any number of steps in a limited number of points. Each point stands for the same number of consecutive
// steps, a power of two: for every metric it has the mean of the values that are known, the smallest and the largest.
class StepSeries {
 public:
  explicit StepSeries(size_t most_points) : most_points_(most_points) {}

  // The next step's record, a line of metrics.jsonl. All of its numbers and truth values are metrics, those of
  // "phase_seconds" with that name before theirs.
  void add(int64_t step, const nlohmann::ordered_json& record);

  int64_t steps() const {
    return steps_;
  }
  int64_t last_step() const {
    return points_.empty() ? 0 : points_.back().step;
  }
  int64_t last_tokens() const {
    return points_.empty() ? 0 : points_.back().tokens;
  }
  double seconds() const { // of all steps
    return seconds_;
  }

  // {"x": {"step": [], "tokens": [], "seconds": []}, "series": {name: {"mean": [], "min": [], "max": []}}}. A point's
  // place is that of its last step; "seconds" are those of all steps up to it. Where a point is one step, there is no
  // min and max; values that are not known are null.
  nlohmann::ordered_json json() const;

 private:
  struct Value {
    double sum = 0, min = 0, max = 0;
    int64_t count = 0; // of steps whose value is known

    void add(double value);
    void add(const Value& other);
  };
  struct Point {
    int64_t step = 0, tokens = 0, steps = 0;
    double seconds = 0;
    std::vector<Value> values; // by the index of the name; may be shorter than the names
  };

  void add_values(const nlohmann::ordered_json& object, const std::string& prefix, size_t& hint);
  size_t index_of(const std::string& name, size_t& hint);
  void halve();

  size_t most_points_;
  int64_t steps_ = 0;
  int64_t steps_a_point_ = 1;
  double seconds_ = 0;
  std::vector<std::string> names_;
  std::vector<Point> points_;
};

} // namespace distill::report
