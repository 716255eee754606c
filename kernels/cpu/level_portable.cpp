#include "vector_portable.h"

#include "task.h"

namespace paceline {

const Level kPortableLevel = {"portable", 192, workspace_bytes, {run_task<float>, run_task<uint16_t>}};

}  // namespace paceline
