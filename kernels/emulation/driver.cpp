// The CUDA driver's functions that the launcher calls, over the emulation: the very same kernel source, on the CPU.
#include "../cuda/paged_prefill.cu"

#define EMULATION_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kOutOfResources = 701;
constexpr int kMaxDynamicShared = 8;
unsigned shared_limit = 48 << 10;
unsigned device_shared_limit = 96 << 10;
uint64_t seed = 0;

void run_grid(const paceline::Arguments& arguments, unsigned shared_bytes) {
  const Dim3 grid = emulation::grid_size;
  // Exact in size, and full of NaN: whatever is read before it is written shows.
  std::unique_ptr<unsigned char, void (*)(void*)> shared(
      static_cast<unsigned char*>(std::aligned_alloc(128, (shared_bytes + 127) / 128 * 128)), std::free);
  emulation::shared_memory = shared.get();
  emulation::Block block(paceline::kThreads, seed);
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        emulation::block_index = {x, y, z};
        std::memset(shared.get(), 0xff, shared_bytes);
        block.run([&arguments] { paceline_paged_prefill(arguments); });
      }
}

}  // namespace

EMULATION_EXPORT int emulation_shared_bytes() { return paceline::kSharedBytes; }
EMULATION_EXPORT int emulation_argument_bytes() { return sizeof(paceline::Arguments); }
EMULATION_EXPORT void emulation_set_device_shared_limit(unsigned bytes) { device_shared_limit = bytes; }
EMULATION_EXPORT void emulation_set_seed(uint64_t value) { seed = value; }

EMULATION_EXPORT int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return image ? kSuccess : kInvalidValue;
}
EMULATION_EXPORT int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return std::strcmp(name, "paceline_paged_prefill") == 0 ? kSuccess : kNotFound;
}
EMULATION_EXPORT int cuFuncSetAttribute(void*, int attribute, int value) {
  if (attribute != kMaxDynamicShared || value < 0 || static_cast<unsigned>(value) > device_shared_limit) return kInvalidValue;
  shared_limit = value;
  return kSuccess;
}
EMULATION_EXPORT int cuGetErrorString(int status, const char** text) {
  *text = status == kOutOfResources ? "too many resources requested for launch" : "emulated error";
  return kSuccess;
}
EMULATION_EXPORT int cuLaunchKernel(void*, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                                    unsigned shared_bytes, void*, void** parameters, void**) {
  if (shared_bytes > shared_limit || shared_bytes < paceline::kSharedBytes) return kOutOfResources;
  if (x == 0 || y == 0 || z == 0 || bx != paceline::kThreads || by != 1 || bz != 1) return kInvalidValue;
  emulation::grid_size = {x, y, z};
  run_grid(*static_cast<const paceline::Arguments*>(parameters[0]), shared_bytes);
  return kSuccess;
}
