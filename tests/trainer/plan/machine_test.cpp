#include "trainer/plan/machine.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "trainer/plan/machine_table.h"

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
  machine.float8_flops = 0;
  machine.measurement = Measurement{"NVIDIA A100-SXM4-80GB", "580.95.05", "2.11.0", "2026-11-26"};
  ASSERT_TRUE(write_machine(machine, path_).ok());
  const auto read = read_machine(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->name, "a machine");
  EXPECT_EQ(read->gather_bytes, 123e9);
  EXPECT_EQ(read->matmul_flops, machine.matmul_flops);
  EXPECT_EQ(read->float8_flops, 0);
  EXPECT_EQ(read->context_gib, machine.context_gib);
  ASSERT_TRUE(read->measurement.has_value());
  EXPECT_EQ(read->measurement->device, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(read->source, "measured on 2026-11-26, driver 580.95.05, libtorch 2.11.0");
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

using testing::HasSubstr;

TEST(MachineTable, EveryRowIsFoundByItsNameAndSaysWhetherItWasMeasured) {
  for (const std::string& name : machine_names()) {
    const auto machine = machine_named(name);
    ASSERT_TRUE(machine.has_value()) << name;
    EXPECT_EQ(machine->source, name == "H200" || name == "H100-SXM" ? "measured" : "data sheet, not measured");
    EXPECT_GT(machine->matmul_flops, 0) << name;
  }
  EXPECT_EQ(machine_named("h100-sxm")->name, "NVIDIA H100 80GB HBM3");
  EXPECT_FALSE(machine_named("H100").has_value()); // there are two
}

TEST(MachineTable, SpeedsAreScaledByWhatLimitsThem) {
  const Machine own = h200(), pcie = *machine_named("H100-PCIe"), a100 = *machine_named("A100-SXM-80");
  EXPECT_DOUBLE_EQ(pcie.matmul_flops, own.matmul_flops * 756 / 989);
  EXPECT_DOUBLE_EQ(pcie.memory_bytes, own.memory_bytes * 2.0 / 4.8);
  EXPECT_DOUBLE_EQ(pcie.gather_bytes, own.gather_bytes * 600 / 900);
  EXPECT_DOUBLE_EQ(a100.matmul_flops, own.matmul_flops * 312 / 989);
  EXPECT_DOUBLE_EQ(a100.reduce_bytes, own.reduce_bytes * 600 / 900);
  EXPECT_EQ(a100.float8_flops, 0);
}

TEST(ChooseMachine, TheRowOfTheDeviceUnlessAskedForAnother) {
  config::Config config;
  const auto own = choose_machine(config, /*cuda=*/true, "NVIDIA H100 PCIe");
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->name, "NVIDIA H100 PCIe");
  EXPECT_EQ(own->choice, "this host's GPU");
  EXPECT_TRUE(own->warning.empty());
  config.memory.machine = "a100-pcie-80";
  EXPECT_EQ(choose_machine(config, /*cuda=*/true, "NVIDIA H100 PCIe")->name, "NVIDIA A100 80GB PCIe");
  config.memory.machine = "H100";
  EXPECT_THAT(
      std::string(choose_machine(config, /*cuda=*/true, "").status().message()),
      testing::AllOf(HasSubstr("memory.machine: expected one of H200, H100-SXM, H100-PCIe"), HasSubstr("found H100")));
}

TEST(ChooseMachine, WithoutARowTheSpeedsAreAnothersAndAWarningSaysSo) {
  const config::Config config;
  const auto unknown = choose_machine(config, /*cuda=*/true, "NVIDIA L40S");
  ASSERT_TRUE(unknown.ok());
  EXPECT_THAT(unknown->warning, testing::AllOf(HasSubstr("NVIDIA L40S"), HasSubstr("--calibrate")));
  EXPECT_THAT(unknown->text(), HasSubstr("in place of NVIDIA L40S"));
  const auto nowhere = choose_machine(config, /*cuda=*/true, "");
  EXPECT_THAT(nowhere->text(), HasSubstr("assumed, since this host has no GPU"));
  EXPECT_TRUE(nowhere->warning.empty());
}

TEST(GenericCpu, SaysThatNothingWasMeasured) {
  const Machine machine = generic_cpu();
  EXPECT_THAT(machine.text(), HasSubstr("not calibrated"));
  EXPECT_EQ(generic_cpu().matmul_flops, machine.matmul_flops); // two plans can be compared
}

} // namespace
} // namespace distill::plan
