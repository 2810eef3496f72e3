// The communicator of the job that this process was started in.
#pragma once

#include <chrono>
#include <memory>

#include "core/comm/communicator.h"

namespace linnet {

// What 'linnet launch' sets beside torchrun's RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE.
inline constexpr const char* kStoreVariable = "LINNET_STORE";          // file:///FOLDER
inline constexpr const char* kLimitVariable = "LINNET_TIME_LIMIT";     // seconds
inline constexpr const char* kInterfaceVariable = "LINNET_INTERFACE";  // default: loopback

// Rank and size are read from RANK and WORLD_SIZE (linnet launch, torchrun), OMPI_COMM_WORLD_RANK
// and OMPI_COMM_WORLD_SIZE (Open MPI) or SLURM_PROCID and SLURM_STEP_NUM_TASKS (srun). Ranks meet
// in LINNET_STORE, or, where these say that all are on this machine, in a folder of the process
// that started them. Without any of them, and for one process, the process is alone. Waits until
// all have come. Throws UsageError for variables that are half there, contradict each other or are
// no numbers, and where ranks of several machines have no LINNET_STORE; Error as
// make_gloo_communicator does.
std::unique_ptr<Communicator> communicator_from_environment();

}  // namespace linnet
