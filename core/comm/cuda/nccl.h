// Collective operations between GPUs, by NCCL. The library is loaded at its first use: builds need
// its header alone. Free of NCCL's header. nccl_communicator.cpp calls NCCL; nccl_absent.cpp is for
// builds that did not find it, and for emulated ones.
//
// Proven with one rank on one GPU at most (tests/core/cuda/nccl_test.cpp). Several ranks have never
// run; on a machine with two GPUs 'test_cuda --gtest_filter=CudaDataParallel.*' trains by them, and
// 'linnet launch --procs 2 -- bench allreduce --device cuda' checks their sums.
#pragma once

#include <memory>
#include <string>

#include "core/comm/communicator.h"

namespace linnet::cuda {

// Why NCCL cannot be used, and the remedy; empty: it can.
std::string nccl_problem();
// "2.28.3"; empty where it cannot be used.
std::string nccl_version();

// Of the ranks of `host`, each with another GPU: operations on tensors of `device` run there, on
// this thread's stream, and those on host memory by `host`. Sums are in NCCL's order, and bf16 sums
// are rounded at every rank that they pass; all ranks get the same bits. An operation waits for its
// end, at most for the time limit, except while a graph is captured: then it is recorded, and every
// replay repeats it. Sums that are started run on a stream beside this thread's, where they divide
// by the ranks; finish_sums() waits for them and for replays, within the limit. Throws UsageError
// with nccl_problem(); Error where the ranks cannot connect in time.
std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host,
                                                     Device device);

}  // namespace linnet::cuda
