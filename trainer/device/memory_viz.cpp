#include "trainer/device/memory_viz.h"

#include <torch/csrc/jit/serialization/pickler.h>

namespace distill::device {
namespace {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

Dict new_dict() {
  return Dict(c10::StringType::get(), c10::AnyType::get());
}

List new_list() {
  return List(c10::AnyType::get());
}

c10::IValue frame(const std::string& name) {
  Dict dict = new_dict();
  dict.insert("filename", "distill");
  dict.insert("line", int64_t{0});
  dict.insert("name", name);
  return dict;
}

Dict entry(const char* action, const MemoryEvent& event) {
  Dict dict = new_dict();
  List frames = new_list();
  frames.push_back(frame(category_name(event.category)));
  frames.push_back(frame(phase_name(event.phase)));
  dict.insert("action", action);
  dict.insert("addr", static_cast<int64_t>(event.address));
  dict.insert("size", std::abs(event.bytes));
  dict.insert("stream", int64_t{0});
  dict.insert("time_us", event.time_us);
  dict.insert("frames", frames);
  return dict;
}

} // namespace

std::string memory_viz_pickle(const std::vector<MemoryEvent>& events) {
  List trace = new_list();
  for (const MemoryEvent& event : events) {
    if (event.bytes > 0) {
      trace.push_back(entry("alloc", event));
    } else {
      trace.push_back(entry("free_requested", event));
      trace.push_back(entry("free_completed", event));
    }
  }
  List traces = new_list();
  traces.push_back(trace);
  Dict snapshot = new_dict();
  snapshot.insert("segments", new_list());
  snapshot.insert("device_traces", traces);
  std::string pickle;
  torch::jit::Pickler pickler(
      [&pickle](const char* data, size_t size) { pickle.append(data, size); }, /*tensor_table=*/nullptr,
      /*type_renamer=*/nullptr, /*memoized_class_types=*/nullptr, /*get_tensor_id=*/nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(snapshot);
  pickler.stop();
  return pickle;
}

} // namespace distill::device
