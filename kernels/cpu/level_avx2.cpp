#include "vector_avx2.h"

#include "task.h"

namespace paceline {

const Level kAvx2Level = {"avx2", 576, workspace_bytes, {run_task<float>, run_task<uint16_t>}};

}  // namespace paceline
