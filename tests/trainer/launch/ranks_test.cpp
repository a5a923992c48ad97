#include "trainer/launch/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace distill::launch {
namespace {

absl::StatusOr<RankInfo> detect(std::map<std::string, std::string> variables) {
  return detect_ranks([variables = std::move(variables)](const char* name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it != variables.end() ? std::optional(it->second) : std::nullopt;
  });
}

TEST(DetectRanks, NothingSetIsOneProcess) {
  const auto info = detect({});
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->world_size, 1);
  EXPECT_EQ(info->launcher, Launcher::kNone);
}

TEST(DetectRanks, Torchrun) {
  const auto info = detect(
      {{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "a"},
       {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->rank, 5);
  EXPECT_EQ(info->world_size, 8);
  EXPECT_EQ(info->local_rank, 1);
  EXPECT_EQ(info->master_addr, "a");
  EXPECT_EQ(info->master_port, 1234);
}

TEST(DetectRanks, TorchrunsAgentServesTheStore) {
  std::map<std::string, std::string> variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_FALSE(detect(variables)->launcher_serves);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_FALSE(detect(variables)->launcher_serves);
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  variables["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_TRUE(detect(variables)->launcher_serves);
  EXPECT_EQ(detect(variables)->attempt, 3);
  variables["TORCHELASTIC_RESTART_COUNT"] = "many";
  EXPECT_THAT(std::string(detect(variables).status().message()), testing::HasSubstr("TORCHELASTIC_RESTART_COUNT"));
}

TEST(DetectRanks, SlurmTakesTheFirstHostOfItsList) {
  const auto info = detect(
      {{"SLURM_PROCID", "9"},
       {"SLURM_NTASKS", "16"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_NTASKS_PER_NODE", "8"},
       {"SLURM_NODELIST", "gpu[007-008]"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->launcher, Launcher::kSlurm);
  EXPECT_EQ(info->master_addr, "gpu007");
}

TEST(DetectRanks, SlurmSaysHowManyTasksEachNodeHas) {
  std::map<std::string, std::string> variables{{"SLURM_PROCID", "17"},       {"SLURM_NTASKS", "20"},
                                               {"SLURM_LOCALID", "1"},       {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"},
                                               {"SLURM_NODELIST", "n[1-3]"}, {"SLURM_NODEID", "2"}};
  const auto last = detect(variables);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->local_world_size, 4);
  EXPECT_EQ(last->master_addr, "n1"); // several nodes, though nobody asked for a number of tasks on each
  variables["SLURM_NODEID"] = "1";
  EXPECT_EQ(detect(variables)->local_world_size, 8);
  EXPECT_EQ(slurm_tasks_on_node("2,1(x2)", 2), 1);
  EXPECT_EQ(slurm_tasks_on_node("2", 0), 2);
  for (const char* bad : {"", "x", "0", "2(x", "2(x0)", "2(xy)", "-1"}) {
    EXPECT_FALSE(slurm_tasks_on_node(bad, 5).has_value()) << bad;
  }
  EXPECT_FALSE(slurm_tasks_on_node("2(x2)", 2).has_value());
}

TEST(DetectRanks, ARankThatIsShownOneGpuTakesIt) {
  std::map<std::string, std::string> slurm{
      {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "3"}, {"CUDA_VISIBLE_DEVICES", "3"}};
  EXPECT_EQ(detect(slurm)->local_gpu, 0);
  slurm["CUDA_VISIBLE_DEVICES"] = "0,1,2,3";
  EXPECT_EQ(detect(slurm)->local_gpu, 3);
  // Two ranks on the only GPU would be a mistake, which is said later.
  EXPECT_EQ(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"CUDA_VISIBLE_DEVICES", "0"}})->local_gpu, 1);
}

TEST(DetectRanks, TheListeningSocketIsRankZeros) {
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {kListenFdVariable, "7"}})->master_listen_fd, 7);
  EXPECT_EQ(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {kListenFdVariable, "7"}})->master_listen_fd, -1);
  EXPECT_EQ(detect({})->master_listen_fd, -1);
}

TEST(DetectRanks, OpenMpiAndPmi) {
  EXPECT_EQ(detect({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}})->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}})->rank, 1);
}

TEST(DetectRanks, AnInnerLauncherGoesBeforeTheSlurmAllocationAroundIt) {
  // mpirun in a script of sbatch: every rank inherits the script's SLURM_PROCID.
  const auto info = detect(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(info->rank, 3);
}

TEST(DetectRanks, APartOfALaunchersVariablesIsAnErrorThatNamesBothParts) {
  struct Case {
    std::map<std::string, std::string> variables;
    const char* says;
  };
  const Case cases[] = {
      {{{"RANK", "0"}}, "found RANK=0 without WORLD_SIZE;"},
      {{{"WORLD_SIZE", "8"}}, "found WORLD_SIZE=8 without RANK;"},
      {{{"RANK", "0"}, {"LOCAL_RANK", "1"}}, "found RANK=0 and LOCAL_RANK=1 without WORLD_SIZE;"},
      {{{"LOCAL_RANK", "1"}}, "found LOCAL_RANK=1 without RANK and WORLD_SIZE;"},
      {{{"LOCAL_WORLD_SIZE", "2"}}, "found LOCAL_WORLD_SIZE=2 without RANK and WORLD_SIZE;"},
      {{{"RANK", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, "found RANK=0 without WORLD_SIZE;"},
      {{{"SLURM_PROCID", "0"}}, "found SLURM_PROCID=0 without SLURM_NTASKS;"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}}, "without SLURM_NTASKS;"},
      {{{"OMPI_COMM_WORLD_RANK", "0"}}, "found OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE;"},
      {{{"OMPI_COMM_WORLD_SIZE", "2"}}, "found OMPI_COMM_WORLD_SIZE=2 without OMPI_COMM_WORLD_RANK;"},
      {{{"PMI_RANK", "0"}}, "found PMI_RANK=0 without PMI_SIZE;"},
      {{{"PMI_SIZE", "2"}}, "found PMI_SIZE=2 without PMI_RANK;"},
  };
  for (const auto& [variables, says] : cases) {
    const auto info = detect(variables);
    ASSERT_FALSE(info.ok()) << says;
    EXPECT_EQ(info.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(info.status().message()), testing::HasSubstr(says));
  }
}

TEST(DetectRanks, AnAllocationInWhichNoRankWasStartedIsOneProcess) {
  const std::map<std::string, std::string> cases[] = {
      {{"SLURM_NTASKS", "16"}, {"SLURM_NTASKS_PER_NODE", "8"}, {"SLURM_JOB_ID", "7"}}, // the shell of salloc
      {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_JOB_ID", "7"}}, // the script of sbatch
  };
  for (const auto& variables : cases) {
    const auto info = detect(variables);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->launched(), 0);
  }
  // A wrapper of srun that exports LOCAL_RANK for its tools.
  const auto slurm = detect({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"LOCAL_RANK", "1"}});
  ASSERT_TRUE(slurm.ok()) << slurm.status();
  EXPECT_EQ(slurm->launcher, Launcher::kSlurm);
}

TEST(DetectRanks, RankZeroTellsTheUserUnlessItsParentDoes) {
  EXPECT_TRUE(detect({})->tells_the_user());
  EXPECT_TRUE(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}})->tells_the_user());
  EXPECT_FALSE(detect({{"RANK", "1"}, {"WORLD_SIZE", "2"}})->tells_the_user());
  EXPECT_FALSE(detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {kListenFdVariable, "7"}})->tells_the_user());
}

TEST(DetectRanks, BadValuesNameTheVariable) {
  const std::pair<std::map<std::string, std::string>, const char*> cases[] = {
      {{{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "99999"}}, "MASTER_PORT"},
      {{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"SLURM_NTASKS_PER_NODE", "8"}}, "MASTER_ADDR"},
  };
  for (const auto& [variables, name] : cases) {
    const auto info = detect(variables);
    ASSERT_FALSE(info.ok()) << name;
    EXPECT_THAT(std::string(info.status().message()), testing::HasSubstr(name));
  }
}

TEST(FirstSlurmHost, ReadsListsAndRanges) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("node1,node2"), "node1");
  EXPECT_EQ(first_slurm_host("node[007-009,12],x3"), "node007");
  EXPECT_EQ(first_slurm_host("n[1,3]-ib,m4"), "n1-ib");
  EXPECT_EQ(first_slurm_host("node["), "");
}

} // namespace
} // namespace distill::launch
