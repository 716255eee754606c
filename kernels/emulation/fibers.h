// Threads of an emulated block as fibers on one host thread: each runs until it must wait for others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#ifndef __x86_64__
#error "the emulation switches stacks with x86-64 assembly"
#endif

namespace emulation {

extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

enum class Wait { kNone, kBlock, kWarp, kDone };

[[noreturn]] inline void fail(const char* what, unsigned thread) {
  std::fprintf(stderr, "emulation: thread %u: %s\n", thread, what);
  std::abort();
}

constexpr unsigned kWarpSize = 32;
constexpr size_t kStackBytes = 64 << 10;

// The threads of one block. Between two barriers they run in an order that `seed` shuffles: code that lacks a barrier
// gives results that depend on the seed.
class Block {
 public:
  Block(unsigned num_threads, uint64_t seed) : fibers_(num_threads), random_(seed * 2 + 1) {
    stacks_.reset(new unsigned char[num_threads * kStackBytes]);
  }

  void run(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    for (unsigned i = 0; i < fibers_.size(); ++i) start(i);
    running_ = this;
    while (step()) {}
    running_ = nullptr;
  }

  static Block& running() { return *running_; }
  unsigned thread() const { return current_; }

  // Wait until every thread of the block has come to the same kind of barrier; `kind` tells kinds apart.
  void wait_for_block(int kind) {
    fibers_[current_].kind = kind;
    yield(Wait::kBlock);
  }

  // Give `value` to the other lanes of the warp and return when all have given theirs: slot l holds lane l's. The last
  // lane to come does `work` for all.
  void* const* exchange(void* value, void (*work)(void* const*) = nullptr) {
    Warp& warp = warps_[current_ / kWarpSize];
    void** slots = warp.slots[warp.round % 2];
    slots[current_ % kWarpSize] = value;
    if (++warp.arrived == kWarpSize) {
      if (work) work(slots);
      warp.arrived = 0;
      ++warp.round;
      for (unsigned l = 0; l < kWarpSize; ++l) fibers_[current_ / kWarpSize * kWarpSize + l].wait = Wait::kNone;
      return slots;
    }
    yield(Wait::kWarp);
    return slots;
  }

  int vote = 0;         // gathered by __syncthreads_or
  int vote_result = 0;

 private:
  struct Fiber {
    void* stack_pointer = nullptr;
    Wait wait = Wait::kNone;
    int kind = 0;
  };
  struct Warp {
    void* slots[2][kWarpSize] = {};
    unsigned arrived = 0, round = 0;
  };

  static void enter() {
    Block& block = running();
    (*block.kernel_)();
    block.yield(Wait::kDone);
    fail("resumed after its end", block.current_);
  }

  void start(unsigned i) {
    fibers_[i] = Fiber();
    warps_.resize(fibers_.size() / kWarpSize);
    uintptr_t top = reinterpret_cast<uintptr_t>(stacks_.get() + (i + 1) * kStackBytes) & ~uintptr_t{15};
    void** frame = reinterpret_cast<void**>(top) - 8;  // six registers, the entry, an aligned return slot
    for (int r = 0; r < 8; ++r) frame[r] = nullptr;
    frame[6] = reinterpret_cast<void*>(&enter);
    fibers_[i].stack_pointer = frame;
  }

  void yield(Wait wait) {
    fibers_[current_].wait = wait;
    emulation_switch(&fibers_[current_].stack_pointer, scheduler_);
  }

  // Run every thread that can run, once; release the barrier when all wait for it. False when all are done.
  bool step() {
    std::vector<unsigned> order(fibers_.size());
    std::iota(order.begin(), order.end(), 0u);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next_random() % i]);
    bool ran = false;
    for (unsigned i : order) {
      if (fibers_[i].wait != Wait::kNone) continue;
      ran = true;
      current_ = i;
      emulation_switch(&scheduler_, fibers_[i].stack_pointer);
    }
    return ran || release();
  }

  bool release() {
    int kind = 0;
    bool any = false;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].wait == Wait::kWarp) fail("waits for lanes of its warp that wait elsewhere", i);
      if (fibers_[i].wait != Wait::kBlock) continue;
      if (any && fibers_[i].kind != kind) fail("is at another barrier than the rest of its block", i);
      any = true;
      kind = fibers_[i].kind;
    }
    if (!any) return false;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].wait == Wait::kDone) fail("ended while its block waits at a barrier", i);
      fibers_[i].wait = Wait::kNone;
    }
    vote_result = std::exchange(vote, 0);
    return true;
  }

  uint64_t next_random() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 33;
  }

  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::unique_ptr<unsigned char[]> stacks_;
  const std::function<void()>* kernel_ = nullptr;
  void* scheduler_ = nullptr;
  unsigned current_ = 0;
  uint64_t random_;
  static inline Block* running_ = nullptr;
};

}  // namespace emulation
