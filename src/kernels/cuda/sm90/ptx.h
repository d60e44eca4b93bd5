// Thin wrappers over the sm_90a instructions of the attention kernels: mbarrier, bulk tensor copy,
// named barriers, matrix moves. One function is one instruction (or its wait loop); no policy here.
// Device code only; shared addresses are 32-bit shared-window addresses, parities are 0 or 1.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/sm90/numbers.h"

namespace foresail::cuda::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier ------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// True in one lane of the warp, which all enter together. Where the compiler sees that, it issues a
// bulk copy once; under another condition it makes a loop over the lanes that may hold.
__device__ __forceinline__ bool elect_lane() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

// Makes the initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_LOOP:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra WAIT_DONE;\n"
      "bra WAIT_LOOP;\n"
      "WAIT_DONE:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Arrives and waits for all others: for a barrier at which the same threads meet each time.
__device__ __forceinline__ void mbarrier_meet(uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 state;\n"
      ".reg .pred done;\n"
      "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
      "WAIT_LOOP:\n"
      "mbarrier.try_wait.shared::cta.b64 done, [%0], state;\n"
      "@done bra WAIT_DONE;\n"
      "bra WAIT_LOOP;\n"
      "WAIT_DONE:\n"
      "}\n" ::"r"(barrier)
      : "memory");
}

// ---- bulk tensor copy ----------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
}

// A cache line read once goes first: keys and values pass through L2 without evicting weights.
__device__ __forceinline__ uint64_t evict_first_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A line written soon read again stays: it is not written back to memory in between. Not volatile:
// the compiler may find it once for many stores.
__device__ __forceinline__ uint64_t evict_last_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// column: element index of the inner dimension; row: index of the outer one. Rows past the end of
// the tensor are filled with zeros and still count their bytes on the barrier.
__device__ __forceinline__ void tma_load_2d(uint32_t destination, const CUtensorMap* map,
                                            int column, int row, uint32_t barrier,
                                            uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void tma_load_2d(uint32_t destination, const CUtensorMap* map,
                                            int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(destination),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// `bytes` (a multiple of 16) as they lie in memory, both ends aligned to 16.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// The other way; `bytes` as there. Stores of a thread up to a commit are a group.
__device__ __forceinline__ void bulk_store(void* destination, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_stores_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until the thread's groups have been read from shared memory.
__device__ __forceinline__ void bulk_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Orders ordinary shared stores before reads by the tensor cores or the copy engine.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- named barriers (id 1..15; threads: a multiple of 32) -----------------------------------

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  __syncwarp();  // the instruction wants whole warps
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same without waiting.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- registers -----------------------------------------------------------------------------

template <int kRegisters>
__device__ __forceinline__ void register_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void register_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- 8x8 matrices of 16-bit elements --------------------------------------------------------

// Stores each thread's fragment transposed: shared row i (its address comes from lane i of the
// matrix's eight lanes) receives column i.
__device__ __forceinline__ void store_matrix_x2_transposed(uint32_t address, uint32_t m0,
                                                           uint32_t m1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(m0), "r"(m1)
               : "memory");
}

__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, uint32_t m0,
                                                           uint32_t m1, uint32_t m2, uint32_t m3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(m0), "r"(m1), "r"(m2), "r"(m3)
      : "memory");
}

// Not transposed: row i receives row i.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t m0, uint32_t m1,
                                                uint32_t m2, uint32_t m3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(m0), "r"(m1), "r"(m2), "r"(m3)
               : "memory");
}

// Each thread receives two neighbours of row lane / 4 of every matrix; the address of row i of
// matrix j comes from lane 8 j + i.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

// The same with rows and columns exchanged.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t transpose_matrix(uint32_t fragment) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(fragment));
  return transposed;
}

// 16 bytes. Volatile, so that it stays behind the wait for what it loads.
__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

// An ordinary shared store that does not tell the compiler that it writes memory: loads of other
// addresses may be scheduled before it. A barrier must stand between it and any reader.
__device__ __forceinline__ void store_shared_unordered(uint32_t address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y));
}

// ---- memory order ------------------------------------------------------------

__device__ __forceinline__ void prefetch_l2(const void* pointer) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer));
}

// A read of what no one writes, issued where it stands: nobody waits until the value is used.
__device__ __forceinline__ int load_ahead(const int* pointer) {
  int value;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(value) : "l"(pointer));
  return value;
}

__device__ __forceinline__ int load_acquire(const int* pointer) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(pointer) : "memory");
  return value;
}

// As it is now in L2, past all other caches. 16 bytes move as a whole.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* pointer) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(pointer));
  return value;
}

__device__ __forceinline__ uint4 load_relaxed(const uint4* pointer) {
  uint64_t low, high;
  asm volatile(
      "{\n"
      ".reg .b128 whole;\n"
      "ld.relaxed.gpu.global.b128 whole, [%2];\n"
      "mov.b128 {%0, %1}, whole;\n"
      "}\n"
      : "=l"(low), "=l"(high)
      : "l"(pointer));
  return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
          static_cast<uint32_t>(high >> 32)};
}

__device__ __forceinline__ void store_relaxed(uint4* pointer, uint4 value, uint64_t policy) {
  asm volatile(
      "{\n"
      ".reg .b128 whole;\n"
      "mov.b128 whole, {%1, %2};\n"
      "st.relaxed.gpu.global.L2::cache_hint.b128 [%0], whole, %3;\n"
      "}\n" ::"l"(pointer),
      "l"(value.x | static_cast<uint64_t>(value.y) << 32),
      "l"(value.z | static_cast<uint64_t>(value.w) << 32), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void store(uint4* pointer, uint4 value, uint64_t policy) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(pointer),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "l"(policy)
               : "memory");
}

__device__ __forceinline__ uint32_t add_acquire_release(uint32_t* pointer, uint32_t value) {
  uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(old)
               : "l"(pointer), "r"(value)
               : "memory");
  return old;
}

__device__ __forceinline__ void add_release(int* pointer, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(pointer), "r"(value) : "memory");
}

// ---- programmatic dependent launch: no effect in a kernel that was launched without it ---------

// Lets the next kernel of the stream be launched once every block of this one has called it.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Waits until the kernel before this one has ended and its writes are visible.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace foresail::cuda::ptx
