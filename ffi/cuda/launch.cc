// Launches CUDA kernels that were compiled at run time (jaxgnn/_ffi/_programs.py) on XLA's stream.
// Needs no CUDA to be compiled itself: the driver is opened when a kernel first runs.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jaxgnn_ffi/batch.h"
#include "xla/ffi/api/ffi.h"

namespace jaxgnn {
namespace {

namespace ffi = xla::ffi;

// The functions of the driver that are used here, with the types of its header.
struct Driver {
  std::string problem;  // empty if all functions were found
  int (*stream_context)(void*, void**);
  int (*push)(void*);
  int (*pop)(void**);
  int (*device)(int*);
  int (*attribute)(int*, int, int);
  int (*exchange_mode)(int*);
  int (*load)(void**, const void*);
  int (*function)(void**, void*, const char*);
  int (*get_attribute)(int*, int, void*);
  int (*set_attribute)(void*, int, int);
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                void**, void**);
  int (*error_string)(int, const char**);

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      problem = dlerror();
      return;
    }
    Find(library, "cuStreamGetCtx", stream_context);
    Find(library, "cuCtxPushCurrent_v2", push);
    Find(library, "cuCtxPopCurrent_v2", pop);
    Find(library, "cuCtxGetDevice", device);
    Find(library, "cuDeviceGetAttribute", attribute);
    Find(library, "cuThreadExchangeStreamCaptureMode", exchange_mode);
    Find(library, "cuModuleLoadData", load);
    Find(library, "cuModuleGetFunction", function);
    Find(library, "cuFuncGetAttribute", get_attribute);
    Find(library, "cuFuncSetAttribute", set_attribute);
    Find(library, "cuLaunchKernel", launch);
    Find(library, "cuGetErrorString", error_string);
  }

  // Describes the failure of a call that returned `status`; empty for success.
  std::string Problem(const char* call, int status) const {
    if (status == 0) return "";
    const char* text = nullptr;
    error_string(status, &text);
    return std::string(call) + ": " + (text ? text : "unknown error");
  }

  static const Driver& Get() {
    static const Driver* driver = new Driver;
    return *driver;
  }

 private:
  template <typename Function>
  void Find(void* library, const char* name, Function*& result) {
    result = reinterpret_cast<Function*>(dlsym(library, name));
    if (result == nullptr) problem = std::string("libcuda.so.1 has no function ") + name;
  }
};

// Makes a context current, and other kinds of calls than launches legal while a stream is captured.
class InContext {
 public:
  InContext(const Driver& driver, void* context) : driver_(driver) {
    pushed_ = driver.push(context) == 0;
    exchanged_ = driver.exchange_mode(&mode_) == 0;
  }
  ~InContext() {
    void* context;
    if (exchanged_) driver_.exchange_mode(&mode_);
    if (pushed_) driver_.pop(&context);
  }

 private:
  const Driver& driver_;
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
  bool pushed_, exchanged_;
};

// Asks Python to compile a program for a compute capability, such as 90, and to call
// `jaxgnn_cuda_add` before it returns: an exported program may run where nothing was traced.
using Provider = void (*)(const char* program, int capability);

// The compiled programs of the process, for each compute capability.
class Programs {
 public:
  struct Compiled {
    std::string cubin, problem;  // one of them is empty
  };

  void set_provider(Provider provider) { provider_ = provider; }

  void Add(const std::string& name, int capability, Compiled compiled) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& entry = programs_[{name, capability}];
    // A program that has been compiled may be in use, and stays.
    if (entry == nullptr || entry->cubin.empty()) {
      entry = std::make_shared<const Compiled>(std::move(compiled));
    }
  }

  // Returns null if no provider has the program.
  std::shared_ptr<const Compiled> Get(const std::string& name, int capability) {
    auto compiled = Find(name, capability);
    if ((compiled == nullptr || compiled->cubin.empty()) && provider_ != nullptr) {
      provider_(name.c_str(), capability);
      compiled = Find(name, capability);
    }
    return compiled;
  }

  static Programs& Instance() {
    static Programs* programs = new Programs;
    return *programs;
  }

 private:
  std::shared_ptr<const Compiled> Find(const std::string& name, int capability) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto entry = programs_.find({name, capability});
    return entry == programs_.end() ? nullptr : entry->second;
  }

  std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::shared_ptr<const Compiled>> programs_;
  Provider provider_ = nullptr;
};

// Kernels of loaded programs, for each context.
class Kernels {
 public:
  // Finds a kernel in the current context, `context`. Returns a problem, or an empty text.
  std::string Get(const Driver& driver, void* context, const std::string& program,
                  const std::string& name, void*& kernel) {
    const Key key{context, program + '\n' + name};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto entry = kernels_.find(key);
      if (entry != kernels_.end()) {
        kernel = entry->second;
        return "";
      }
    }
    int device = 0, major = 0, minor = 0;
    std::string problem = driver.Problem("cuCtxGetDevice", driver.device(&device));
    if (!problem.empty()) return problem;
    driver.attribute(&major, 75, device);  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    driver.attribute(&minor, 76, device);
    // May compile, for which nothing else waits.
    const auto compiled = Programs::Instance().Get(program, 10 * major + minor);
    if (compiled == nullptr) return "no source was registered";
    if (!compiled->problem.empty()) return compiled->problem;
    std::lock_guard<std::mutex> lock(mutex_);
    void*& module = modules_[{context, program}];
    if (module == nullptr) {
      void* loaded = nullptr;
      problem = driver.Problem("cuModuleLoadData", driver.load(&loaded, compiled->cubin.data()));
      if (!problem.empty()) return problem;
      module = loaded;
    }
    problem = FindIn(driver, module, device, name, kernel);
    if (problem.empty()) kernels_[key] = kernel;
    return problem;
  }

  static Kernels& Instance() {
    static Kernels* kernels = new Kernels;
    return *kernels;
  }

 private:
  using Key = std::pair<void*, std::string>;

  // Finds a kernel in a module, and lets its launches have all the shared memory that a block may
  // have beside what the kernel declares. The limit is the same at every call, so that calls from
  // several threads or in one graph agree.
  static std::string FindIn(const Driver& driver, void* module, int device, const std::string& name,
                            void*& kernel) {
    constexpr int kOfBlock = 97;     // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    constexpr int kDeclared = 1;     // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    constexpr int kMostDynamic = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    std::string problem =
        driver.Problem("cuModuleGetFunction", driver.function(&kernel, module, name.c_str()));
    if (!problem.empty()) return problem;
    int bytes = 0, declared = 0;
    driver.attribute(&bytes, kOfBlock, device);
    driver.get_attribute(&declared, kDeclared, kernel);
    return driver.Problem("cuFuncSetAttribute",
                          driver.set_attribute(kernel, kMostDynamic, bytes - declared));
  }

  std::mutex mutex_;
  std::map<Key, void*> modules_, kernels_;
};

// How a kernel is launched; the fields are those of `Launch` in jaxgnn/_ffi/_launch.py.
struct Launch {
  static constexpr size_t kFields = 8;
  int64_t tasks, tasks_per_block, most_blocks, blocks_y, threads_x, threads_y, shared_bytes;
  int64_t carveout;

  // The blocks of the first direction, which stride over the tasks; `rows` are the tasks if the
  // number of these is -1.
  unsigned Blocks(int64_t rows) const {
    const int64_t all = tasks < 0 ? rows : tasks;
    const int64_t needed = (all + tasks_per_block - 1) / tasks_per_block;
    return static_cast<unsigned>(std::clamp<int64_t>(needed, 1, most_blocks));
  }
};

// A launch and its kernel in a context.
struct Loaded {
  Launch launch;
  void* kernel;
};

// The kernels `names`, joined by commas. Returns a problem, or an empty text.
std::string LoadAll(const Driver& driver, void* context, const std::string& program,
                    std::string_view names, ffi::Span<const int64_t> launches,
                    std::vector<Loaded>& loaded) {
  for (const int64_t* fields = launches.begin(); fields + Launch::kFields <= launches.end();
       fields += Launch::kFields) {
    const size_t length = std::min(names.find(','), names.size());
    const std::string name(names.substr(0, length));
    names.remove_prefix(std::min(length + 1, names.size()));
    Loaded one{
        {fields[0], fields[1], fields[2], fields[3], fields[4], fields[5], fields[6], fields[7]},
        nullptr};
    std::string problem = Kernels::Instance().Get(driver, context, program, name, one.kernel);
    constexpr int kCarveout = 9;  // CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    if (problem.empty() && one.launch.carveout >= 0) {
      problem = driver.Problem(
          "cuFuncSetAttribute",
          driver.set_attribute(one.kernel, kCarveout, static_cast<int>(one.launch.carveout)));
    }
    if (!problem.empty()) return name + ": " + problem;
    loaded.push_back(one);
  }
  return "";
}

// Launches all kernels on the same words: pointers and integers, of which a kernel whose parameter
// is an int reads the lower half.
std::string LaunchAll(const Driver& driver, void* stream, const std::vector<Loaded>& kernels,
                      int64_t rows, std::vector<int64_t>& words) {
  std::vector<void*> parameters;
  for (int64_t& word : words) parameters.push_back(&word);
  for (const auto& [launch, kernel] : kernels) {
    const int status = driver.launch(
        kernel, launch.Blocks(rows), static_cast<unsigned>(launch.blocks_y), 1,
        static_cast<unsigned>(launch.threads_x), static_cast<unsigned>(launch.threads_y), 1,
        static_cast<unsigned>(launch.shared_bytes), stream, parameters.data(), nullptr);
    if (status != 0) return driver.Problem("cuLaunchKernel", status);
  }
  return "";
}

// The buffers of a call; an empty one stands for None, and kernels get null for it.
struct Buffers {
  std::vector<ffi::AnyBuffer> all;  // operands, then results
  size_t num_operands = 0;

  ffi::Error Read(ffi::RemainingArgs operands, ffi::RemainingRets results) {
    num_operands = operands.size();
    for (size_t i = 0; i < operands.size(); ++i) {
      auto operand = operands.get<ffi::AnyBuffer>(i);
      if (!operand.has_value()) return operand.error();
      all.push_back(*operand);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      auto result = results.get<ffi::AnyBuffer>(i);
      if (!result.has_value()) return result.error();
      all.push_back(**result);
    }
    return ffi::Error::Success();
  }

  const ffi::AnyBuffer& result() const { return all[num_operands]; }
};

// Runs the kernels of a program: once for each member of a batch, or where `by_row`, once for the
// rows of all members. Their parameters are the operands, the results, by row the number of rows,
// and `numbers`. `rank` is that of an item of the first result.
ffi::Error Run(void* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
               std::string_view program_name, std::string_view names,
               ffi::Span<const int64_t> launches, ffi::Span<const int64_t> numbers, int64_t rank,
               bool by_row) {
  Buffers buffers;
  ffi::Error error = buffers.Read(operands, results);
  if (!error.success()) return error;
  if (buffers.result().element_count() == 0) return ffi::Error::Success();
  const std::string program(program_name);
  const Driver& driver = Driver::Get();
  std::string problem = driver.problem;
  void* context = nullptr;
  if (problem.empty()) {
    problem = driver.Problem("cuStreamGetCtx", driver.stream_context(stream, &context));
  }
  if (problem.empty()) {
    const InContext current(driver, context);
    std::vector<Loaded> kernels;
    problem = LoadAll(driver, context, program, names, launches, kernels);
    const Batch batch(buffers.result().dimensions(), static_cast<size_t>(rank));
    const int64_t rows = batch.size(), members = by_row ? 1 : batch.size();
    for (int64_t member = 0; problem.empty() && member < members; ++member) {
      std::vector<int64_t> words;
      for (const ffi::AnyBuffer& buffer : buffers.all) {
        const void* data = by_row ? buffer.untyped_data() : batch.Bytes(buffer, member);
        words.push_back(buffer.element_count() == 0 ? 0 : reinterpret_cast<intptr_t>(data));
      }
      if (by_row) words.push_back(rows);
      words.insert(words.end(), numbers.begin(), numbers.end());
      problem = LaunchAll(driver, stream, kernels, rows, words);
    }
  }
  if (problem.empty()) return ffi::Error::Success();
  return ffi::Error::Internal("jaxgnn: the CUDA kernels " + program + " failed: " + problem);
}

}  // namespace
}  // namespace jaxgnn

#pragma GCC visibility push(default)

extern "C" {

void jaxgnn_cuda_setup(jaxgnn::Provider provider) {
  jaxgnn::Programs::Instance().set_provider(provider);
}

// Adds a compiled program for a compute capability, or the problem because of which there is none.
void jaxgnn_cuda_add(const char* name, int capability, const char* cubin, int64_t size,
                     const char* problem) {
  jaxgnn::Programs::Instance().Add(name, capability,
                                   {std::string(cubin, static_cast<size_t>(size)), problem});
}
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(jaxgnn_launch, jaxgnn::Run,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<void*>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("program")
                                  .Attr<std::string_view>("kernels")
                                  .Attr<xla::ffi::Span<const int64_t>>("launches")
                                  .Attr<xla::ffi::Span<const int64_t>>("numbers")
                                  .Attr<int64_t>("rank")
                                  .Attr<bool>("by_row"),
                              {xla::ffi::Traits::kCmdBufferCompatible});

#pragma GCC visibility pop
