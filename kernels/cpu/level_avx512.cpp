#include "vector_avx512.h"

#include "task.h"

namespace paceline {

const Level kAvx512Level = {"avx512", 384, workspace_bytes, {run_task<float>, run_task<uint16_t>}};

}  // namespace paceline
