// ModelBuilder: a model written as calls on symbolic values.
//
//   ModelBuilder b("two layers");
//   Value x = b.input("x", {64, 8}, torch::kFloat32);
//   for (int i = 0; i < 2; ++i) {
//     auto layer = b.annotate("layer"); // layer = 0, 1
//     x = b.call(fmt::format("linear{}", i), [] { return torch::nn::Linear(8, 8); }, x);
//   }
//   Result<Model> model = b.loss(b.call("mean", [](const at::Tensor& y) { return y.mean(); }, x));
//
// Each call is tried when it is made: its module is built, run on the CPU with two and three rows
// of zeros, and dropped, so that types are known and a mismatch is found without ever holding the
// whole model. The first error is kept, later calls do nothing, and `loss` returns it.
// Not thread-safe. Values and scopes point to their builder, which cannot move.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace piper {

class ModelBuilder;
struct TracedTensor;

/// A tensor of the model. A default-made one is none: a call that is given it is an error.
class Value {
public:
  Value() = default;

private:
  friend class ModelBuilder;
  Value(const ModelBuilder* builder, ir::ValueId id) : builder_(builder), id_(id) {}
  const ModelBuilder* builder_ = nullptr;
  ir::ValueId id_;
};

/// What a call gives whose forward returns a vector of tensors.
class Values {
public:
  Values() = default;
  explicit Values(std::vector<Value> values) : values_(std::move(values)) {}
  size_t size() const { return values_.size(); }
  /// No value where the call has no such output, or failed.
  Value operator[](size_t i) const { return i < size() ? values_[i] : Value(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

private:
  std::vector<Value> values_;
};

/// How the ranks of a group may share a call: see ir::Cut. For Tensor and Experts the factory takes
/// a Piece and makes that piece of the module, whose parameters are the whole module's or an equal
/// part of one dimension. Devices store a parameter with that dimension outermost, so that a part
/// is one run of memory, and the module sees a view of it: one that registers its parameters with
/// such strides has the same ones there.
struct CallCut {
  ir::Cut kind = ir::Cut::None;
  int64_t pieces = 1; ///< Tensor (heads, say), Experts: how many equal pieces there are
  size_t counts = 0;  ///< Experts: which input holds the counts, i64[1, experts]
};

struct CallOptions {
  std::string name; ///< unique in the model; letters, digits and _ - . : /
  /// A parameter's logical name is this, a dot, and its name in the module; without the dot if
  /// empty. The module's name if not given.
  std::optional<std::string> prefix = std::nullopt;
  /// Of the forward pass. Estimated if not given: 2 x the elements of the parameters with two
  /// dimensions or more x the tokens of a row (elements of the first output / its last extent);
  /// 0 for calls of which no input is differentiable nor floating (embeddings look up).
  std::optional<double> flops_per_row = std::nullopt;
  CallCut cut = {};
};

/// A module that several calls may use, which then share its parameters.
template <class Module> class ModuleRef {
  friend class ModelBuilder;
  ModuleRef(const ModelBuilder* builder, std::optional<uint32_t> index)
      : builder_(builder), index_(index) {}
  const ModelBuilder* builder_;
  std::optional<uint32_t> index_; ///< none if the module was refused
};

/// How C++ callables become what a device calls.
namespace frontend {

inline constexpr size_t kMaxInputs = 8;

/// A module as a function object.
template <class Module> struct Forward {
  std::shared_ptr<Module> module;
  template <class... Args>
  decltype(auto) operator()(Args&&... args) const requires requires(Module& m) {
    m.forward(std::forward<Args>(args)...);
  }
  { return module->forward(std::forward<Args>(args)...); }
};

template <size_t> using TensorArg = const at::Tensor&;
template <class Callable, size_t... I> constexpr bool takes_tensors(std::index_sequence<I...>) {
  return std::is_invocable_v<Callable&, TensorArg<I>...>;
}
/// Whether the callable takes N tensors, each an argument of its own.
template <class Callable, size_t N>
inline constexpr bool kTakes = takes_tensors<Callable>(std::make_index_sequence<N>());

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

inline Tensors to_tensors(at::Tensor tensor) {
  return {std::move(tensor)};
}
inline Tensors to_tensors(Tensors tensors) {
  return tensors;
}
template <TupleLike T> Tensors to_tensors(const T& tuple) {
  return std::apply([](const auto&... tensors) { return Tensors{tensors...}; }, tuple);
}

template <class Callable, size_t... I>
Tensors spread(Callable& callable, const Tensors& in, std::index_sequence<I...>) {
  return to_tensors(callable(in[I]...));
}
[[noreturn]] void throw_wrong_arity(size_t inputs);
/// Calls with as many arguments as there are inputs, or with the vector of them.
template <size_t N = 1, class Callable> Tensors invoke(Callable& callable, const Tensors& in) {
  if constexpr (N <= kMaxInputs) {
    if constexpr (kTakes<Callable, N>)
      if (in.size() == N)
        return spread(callable, in, std::make_index_sequence<N>());
    return invoke<N + 1>(callable, in);
  } else if constexpr (std::is_invocable_v<Callable&, const Tensors&>) {
    return to_tensors(callable(in));
  } else {
    throw_wrong_arity(in.size());
  }
}

/// What the callable returns for inputs of these types (Value, Values, std::vector<Value>).
template <class Callable, class... Inputs> auto returned() {
  constexpr size_t count = sizeof...(Inputs);
  static_assert(count > 0, "a call needs at least one input");
  static_assert(count <= kMaxInputs, "give more inputs than this as one std::vector<Value>");
  if constexpr ((std::is_convertible_v<Inputs, Value> && ...) && kTakes<Callable, count>) {
    return []<size_t... I>(std::index_sequence<I...>) {
      return std::type_identity<std::decay_t<std::invoke_result_t<Callable&, TensorArg<I>...>>>();
    }
    (std::make_index_sequence<count>());
  } else {
    static_assert(std::is_invocable_v<Callable&, const Tensors&>,
                  "the function, or the module's forward, does not take these inputs");
    return std::type_identity<std::decay_t<std::invoke_result_t<Callable&, const Tensors&>>>();
  }
}

/// A factory's result (a module holder, a shared pointer) as a shared pointer.
template <class Made> auto module_pointer(Made made) {
  if constexpr (requires { made.ptr(); })
    return made.ptr();
  else
    return std::shared_ptr(std::move(made));
}
template <class Factory, class... Args>
using ModuleOf = typename decltype(module_pointer(
    std::declval<std::invoke_result_t<Factory&, Args...>>()))::element_type;

template <class Factory> std::function<BuiltModule()> make_module(Factory factory) {
  return [factory = std::move(factory)]() mutable {
    Forward<ModuleOf<Factory>> forward{module_pointer(factory())};
    return BuiltModule{forward.module,
                       [forward](const Tensors& in) { return invoke(forward, in); }};
  };
}
template <class Factory> std::function<BuiltModule(Piece)> make_part(Factory factory) {
  return [factory = std::move(factory)](Piece piece) mutable {
    Forward<ModuleOf<Factory, Piece>> forward{module_pointer(factory(piece))};
    return BuiltModule{forward.module,
                       [forward](const Tensors& in) { return invoke(forward, in); }};
  };
}
template <class Function> std::function<BuiltModule()> make_function(Function function) {
  return [function = std::move(function)] {
    return BuiltModule{nullptr,
                       [function](const Tensors& in) mutable { return invoke(function, in); }};
  };
}

} // namespace frontend

class ModelBuilder {
public:
  explicit ModelBuilder(std::string model_name = "model");
  ~ModelBuilder();
  ModelBuilder(const ModelBuilder&) = delete;
  ModelBuilder& operator=(const ModelBuilder&) = delete;

  /// Modules are converted to this floating type once made; float32 if not called. For the calls
  /// that follow.
  void dtype(c10::ScalarType dtype);

  /// What the data source feeds. `shape[0]` is the global batch of an iteration, the same for all
  /// inputs.
  Value input(const std::string& name, std::vector<int64_t> shape, c10::ScalarType dtype);

  /// Annotates the calls made while it lives.
  class [[nodiscard]] Scope {
  public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    friend class ModelBuilder;
    explicit Scope(ModelBuilder* builder) : builder_(builder) {}
    ModelBuilder* builder_;
  };
  /// `name = 0, 1, 2, …` over the whole model, in the order of the calls of `annotate(name)`, so
  /// that an index names one scope also where scopes nest.
  Scope annotate(const std::string& name);
  /// With an index of the caller's; one that was used before continues it. Does not count.
  Scope annotate(const std::string& name, int64_t index);

  /// A module to be called several times. Its parameters are shared by the calls.
  template <class Factory>
  auto module(const std::string& name, Factory factory,
              std::optional<std::string> prefix = std::nullopt) {
    return ModuleRef<frontend::ModuleOf<Factory>>(
        this, add_module(name, prefix, frontend::make_module(std::move(factory))));
  }

  /// Calls `what` on the inputs: a factory of a module (a callable without arguments, or of a
  /// Piece, that returns a torch::nn holder or a shared pointer), a `module`, or a plain function
  /// of tensors. Arguments are tensors, one an input, or one vector of all. Gives a Value for a
  /// forward that returns a tensor, std::array<Value, N> for a tuple, pair or array, Values for a
  /// vector. The name of a factory's module is the call's.
  template <class What, class... Inputs>
  auto call(CallOptions options, What what, const Inputs&... inputs) {
    if constexpr (requires { typename IsModuleRef<What>::Module; }) {
      using Callable = frontend::Forward<typename IsModuleRef<What>::Module>;
      return add_call<Callable>(options, check_ref(options, what.builder_, what.index_), inputs...);
    } else if constexpr (std::is_invocable_v<What&>) {
      using Callable = frontend::Forward<frontend::ModuleOf<What>>;
      auto module =
          add_module(options.name, options.prefix, frontend::make_module(std::move(what)));
      return add_call<Callable>(options, module, inputs...);
    } else if constexpr (std::is_invocable_v<What&, Piece>) {
      using Callable = frontend::Forward<frontend::ModuleOf<What, Piece>>;
      auto part = frontend::make_part(std::move(what));
      auto module = add_module(
          options.name, options.prefix, [part] { return part(Piece{}); }, part);
      return add_call<Callable>(options, module, inputs...);
    } else {
      auto module = add_module(options.name, {}, frontend::make_function(std::move(what)));
      return add_call<What>(options, module, inputs...);
    }
  }
  template <std::convertible_to<std::string> Name, class What, class... Inputs>
  auto call(const Name& name, What what, const Inputs&... inputs) {
    return call(CallOptions{name}, std::move(what), inputs...);
  }

  /// Makes the parameter `name` the same as `of`, whose name stays. Both are logical names, of
  /// modules called before or after this.
  void tie(const std::string& name, const std::string& of);

  /// The model whose loss is `loss`: a differentiable scalar that must be the mean over the rows it
  /// was computed from (what makes microbatches add up to the batch).
  Result<Model> loss(Value loss);
  /// The same with the mean cross entropy of `logits` (..., classes) against `targets` (...,
  /// integers below `classes`), as a call "loss" with the annotations of the last call.
  Result<Model> loss(Value logits, Value targets);

private:
  template <class T> struct IsModuleRef {};
  template <class M> struct IsModuleRef<ModuleRef<M>> { using Module = M; };
  struct ModuleRecord {
    ModuleFactory factory;
    std::string prefix;
    bool called = false; ///< its parameters are known
  };
  struct Tie {
    std::string name, of;
  };

  template <class Callable, class... Inputs>
  auto add_call(const CallOptions& options, std::optional<uint32_t> module,
                const Inputs&... inputs) {
    using Returned = typename decltype(frontend::returned<Callable, Inputs...>())::type;
    std::vector<Value> gathered;
    (gather(gathered, inputs), ...);
    std::vector<Value> outputs = trace(options, module, gathered);
    if constexpr (std::same_as<Returned, Tensors>) {
      return Values(std::move(outputs));
    } else if constexpr (frontend::TupleLike<Returned>) {
      std::array<Value, std::tuple_size_v<Returned>> array;
      for (size_t i = 0; i < std::min(array.size(), outputs.size()); ++i)
        array[i] = outputs[i];
      return array;
    } else {
      static_assert(std::same_as<Returned, at::Tensor>,
                    "a call must return a tensor, or a tuple or vector of tensors");
      return outputs.empty() ? Value() : outputs.front();
    }
  }
  static void gather(std::vector<Value>& to, Value value) { to.push_back(value); }
  static void gather(std::vector<Value>& to, const Values& values) {
    to.insert(to.end(), values.begin(), values.end());
  }
  static void gather(std::vector<Value>& to, const std::vector<Value>& values) {
    to.insert(to.end(), values.begin(), values.end());
  }

  std::optional<uint32_t> add_module(const std::string& name, std::optional<std::string> prefix,
                                     std::function<BuiltModule()> make,
                                     std::function<BuiltModule(Piece)> make_part = {});
  std::optional<uint32_t> check_ref(const CallOptions& options, const ModelBuilder* builder,
                                    std::optional<uint32_t> index);
  /// The outputs; none once there is an error.
  std::vector<Value> trace(const CallOptions& options, std::optional<uint32_t> module,
                           const std::vector<Value>& inputs);
  Result<std::vector<Value>> try_trace(const CallOptions& options, uint32_t module,
                                       const std::vector<Value>& inputs);
  Result<void> add_params(ModuleRecord& record, const BuiltModule& built);
  /// What the options say of how the call is cut, checked against a piece of its module.
  Result<void> add_cut(const CallCut& cut, const ModuleRecord& record, const BuiltModule& whole,
                       ir::ModelCall& call);
  double estimate_flops(const ir::ModelCall& call) const;
  Result<ir::ValueId> add_value(ir::ModelValue value);
  Result<void> merge_ties(ir::ModelSpec& spec, std::vector<ModuleFactory>& modules) const;
  Result<void> check_all_used(const ir::ModelSpec& spec) const;
  Result<Model> finish(Value loss);
  bool owns(Value value) const { return value.builder_ == this && value.id_.valid(); }
  void fail(Error error);

  c10::ScalarType dtype_;
  ir::ModelSpec spec_;
  std::vector<ModuleRecord> modules_;
  std::vector<uint32_t> call_module_;
  std::set<std::string> value_names_, module_names_;
  std::map<std::string, int64_t> next_index_; ///< of each annotation
  std::vector<ir::Tag> scopes_;
  std::vector<Tie> ties_;
  std::optional<Error> error_;
};

} // namespace piper
