// The communicator of the job that this process was started in.
#pragma once

#include <chrono>
#include <memory>

#include "core/comm/communicator.h"

namespace linnet {

// What 'linnet launch' sets beside torchrun's RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
inline constexpr const char* kStoreVariable = "LINNET_STORE";          // file:///FOLDER, or
                                                                       // tcp://HOST:PORT
inline constexpr const char* kLimitVariable = "LINNET_TIME_LIMIT";     // seconds
inline constexpr const char* kInterfaceVariable = "LINNET_INTERFACE";  // a network interface
inline constexpr const char* kTokenVariable = "LINNET_TOKEN";          // of a store over TCP

// Rank and size are read from RANK and WORLD_SIZE (linnet launch, torchrun), OMPI_COMM_WORLD_RANK
// and OMPI_COMM_WORLD_SIZE (Open MPI) or SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). Ranks meet
// in LINNET_STORE; at MASTER_ADDR and MASTER_PORT or one of the 15 ports after it; or, where the
// starter says that all are on this machine, in a folder of the process that started them. They
// listen on the loopback address unless the starter says that there are several machines, or
// MASTER_ADDR, without its word, is another one. Without any of these, and for one process, the
// process is alone. Waits until all have come. Throws UsageError for variables that are half there,
// contradict each other or are no numbers, and where ranks of several machines are not told where
// they meet; Error as make_gloo_communicator and make_tcp_store do. `device`: whose tensors are to
// be exchanged by NCCL, where that can be used; they pass through host memory otherwise.
std::unique_ptr<Communicator> communicator_from_environment(Device device = {});

// This process's number among the ranks of its machine, as its starter says; 0 without one.
int local_rank_from_environment();

}  // namespace linnet
