#include "trainer/plan/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace distill::plan {
namespace {

class MachineFile : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "machine.json";
  void TearDown() override {
    std::filesystem::remove(path_);
  }
};

TEST_F(MachineFile, ReadsBackWhatWasWritten) {
  Machine machine = h200();
  machine.name = "a machine";
  machine.gather_bytes = 123e9;
  ASSERT_TRUE(write_machine(machine, path_).ok());
  const auto read = read_machine(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->name, "a machine");
  EXPECT_EQ(read->gather_bytes, 123e9);
  EXPECT_EQ(read->matmul_flops, machine.matmul_flops);
}

TEST_F(MachineFile, NamesTheKeyThatIsMissingOrWrong) {
  std::ofstream(path_) << R"({"name": "x", "memory_gib": 80, "host_gib": -1})";
  const auto read = read_machine(path_);
  ASSERT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(
      std::string(read.status().message()).find("host_gib: expected a positive number, found -1"), std::string::npos)
      << read.status();
  EXPECT_FALSE(read_machine(path_ + ".gone").ok());
}

TEST(GenericCpu, SaysThatNothingWasMeasured) {
  const Machine machine = generic_cpu();
  EXPECT_NE(machine.name.find("not calibrated"), std::string::npos) << machine.name;
  EXPECT_EQ(generic_cpu().matmul_flops, machine.matmul_flops); // two plans can be compared
}

} // namespace
} // namespace distill::plan
