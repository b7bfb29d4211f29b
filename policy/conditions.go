package policy

// conditions.go - expressions over what hosts have measured, in the Common Expression Language (cel.dev).

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"

	v1 "watari/api/watariv1"
)

// Variable is a variable of expressions.
type Variable struct {
	Name  string
	Means string // for people, with the unit
	// Measured: the variable is known only from a sample, so `match` cannot use it.
	Measured bool
	kind     *cel.Type
}

// Variables are all variables.
var Variables = []Variable{
	{"host.name", "the host's name", false, cel.StringType},
	{"host.site", "the host's site", false, cel.StringType},
	{"host.lent", "whether the host was lent out by its owner (`watari up --lent`)", false, cel.BoolType},
	{"host.cores", "the host's logical CPUs", false, cel.DoubleType},
	{"host.memory", "memory that the host offers to guests, in bytes", false, cel.DoubleType},
	{"host.owner_cpu", "processor time that programs of people use, in cores", true, cel.DoubleType},
	{"host.guests_cpu", "processor time that guests use, in cores", true, cel.DoubleType},
	{"host.system_cpu", "processor time that everything else uses, in cores", true, cel.DoubleType},
	{"host.memory_available", "memory that is free, or could be, in bytes", true, cel.DoubleType},
	{"host.cpu_pressure", "share of time in which some task waited for a processor, 0 to 1 (the kernel's PSI)", true, cel.DoubleType},
	{"host.memory_pressure", "the same of memory", true, cel.DoubleType},
	{"host.io_pressure", "the same of disks", true, cel.DoubleType},
	{"host.users", "names of the people who are logged in", true, cel.ListType(cel.StringType)},
	{"host.input_idle", "time since the last key or movement of the mouse; 10 years if that is not known", true, cel.DurationType},
	{"host.terminal_idle", "time since somebody typed on a terminal; 10 years if that is not known", true, cel.DurationType},
}

// never is the idle time of a device that the host does not have, or at which nobody was seen.
const never = 10 * 365 * 24 * time.Hour

// costLimit bounds the evaluation of an expression, in CEL's units: a comparison costs about one.
const costLimit = 10_000

// Bounds of an expression.
const (
	// maxExpression is the largest size of an expression, in bytes.
	maxExpression = 1 << 10
	// maxExpressionDepth bounds nested brackets and calls.
	maxExpressionDepth = 40
	// maxPattern is the largest size of a regular expression, in bytes, and maxPatternSteps that of its program: "a{100}" has
	// about 100 steps.
	maxPattern      = 200
	maxPatternSteps = 150
)

// Expression is a compiled expression that is true or false.
type Expression struct {
	Text    string
	program cel.Program
}

var (
	matching  = environment(func(v Variable) bool { return !v.Measured })
	measuring = environment(func(Variable) bool { return true })
	everyHost = must(compile(matching, "true"))
)

func environment(has func(Variable) bool) *cel.Env {
	options := []cel.EnvOption{cel.ParserRecursionLimit(maxExpressionDepth), cel.ExpressionNodeLimit(2 * maxExpression)}
	for _, v := range Variables {
		if has(v) {
			options = append(options, cel.Variable(v.Name, v.kind))
		}
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		panic(fmt.Sprintf("policy: variables: %v", err))
	}
	return env
}

func must(e *Expression, err error) *Expression {
	if err != nil {
		panic(fmt.Sprintf("policy: %v", err))
	}
	return e
}

// compile compiles an expression.
func compile(env *cel.Env, text string) (*Expression, error) {
	switch {
	case text == "":
		return nil, errors.New("the expression is empty; write one such as host.lent")
	case len(text) > maxExpression:
		return nil, fmt.Errorf("the expression has %d bytes, and may have %d; shorten it, or spread it over several entries", len(text), maxExpression)
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		first := issues.Errors()[0]
		message := first.Message
		if strings.HasPrefix(message, "undeclared reference") {
			message += "; the variables are " + strings.Join(names(), ", ")
		}
		if first.Location.Column() < 0 {
			return nil, fmt.Errorf("the expression is not read: %s; write a simpler one", message)
		}
		return nil, fmt.Errorf("column %d of the expression: %s", first.Location.Column()+1, message)
	}
	if !ast.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("the expression is a %s, and must be true or false", ast.OutputType())
	}
	if err := checkPatterns(ast); err != nil {
		return nil, err
	}
	program, err := env.Program(ast, cel.CostLimit(costLimit), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be evaluated: %w", err)
	}
	return &Expression{Text: text, program: program}, nil
}

// checkPatterns bounds the regular expressions of an expression. They must be constants: CEL would compile others at each
// evaluation.
func checkPatterns(checked *cel.Ast) error {
	// The types of nodes have no names in the packages that this one may import.
	all := listOf(checked.NativeRep().Expr())
	for i := 0; i < len(all); i++ {
		node := all[i]
		if node.Kind() == 0 {
			continue // of a call without a target, for example
		}
		call, loop := node.AsCall(), node.AsComprehension()
		if call.FunctionName() == "matches" {
			args := call.Args()
			var pattern string
			known := false
			if value := args[len(args)-1].AsLiteral(); value != nil {
				pattern, known = value.Value().(string)
			}
			if !known {
				return errors.New("matches: the pattern has to be a text in quotation marks")
			}
			if len(pattern) > maxPattern {
				return fmt.Errorf("matches: the pattern has %d bytes, and may have %d; shorten it, or use startsWith, endsWith or contains", len(pattern), maxPattern)
			}
			steps, err := types.RegexProgramSize(pattern)
			if err != nil {
				return fmt.Errorf("matches: %w", err)
			}
			if steps > maxPatternSteps {
				return fmt.Errorf("matches: the pattern %q takes %d steps, and may take %d; use smaller repetition counts", pattern, steps, maxPatternSteps)
			}
		}
		all = append(append(all, call.Args()...), call.Target(), node.AsSelect().Operand())
		all = append(all, node.AsList().Elements()...)
		for _, e := range node.AsMap().Entries() {
			all = append(all, e.AsMapEntry().Key(), e.AsMapEntry().Value())
		}
		for _, field := range node.AsStruct().Fields() {
			all = append(all, field.AsStructField().Value())
		}
		all = append(all, loop.IterRange(), loop.AccuInit(), loop.LoopCondition(), loop.LoopStep(), loop.Result())
	}
	return nil
}

func listOf[T any](e T) []T { return []T{e} }

func names() (list []string) {
	for _, v := range Variables {
		list = append(list, v.Name)
	}
	return list
}

// True evaluates an expression.
func (e *Expression) True(variables map[string]any) (bool, error) {
	result, _, err := e.program.Eval(variables)
	if err != nil {
		return false, fmt.Errorf("evaluate %q: %w", e.Text, err)
	}
	return result == types.True, nil
}

// hostVariables returns the variables that are known of a host without a sample.
func hostVariables(h *v1.Host) map[string]any {
	return map[string]any{
		"host.name": h.GetMeta().GetName(), "host.site": h.GetInfo().GetSite(), "host.lent": h.GetInfo().GetLent(),
		"host.cores": float64(h.GetInfo().GetCores()), "host.memory": float64(h.GetInfo().GetMemoryBytes()),
	}
}

// variables returns all variables.
func variables(h *v1.Host, s *v1.HostSample) map[string]any {
	all := hostVariables(h)
	all["host.memory_available"] = float64(s.GetMemoryAvailableBytes())
	if s.GetSeconds() > 0 { // without rates, a condition on them cannot be evaluated, and does not hold
		all["host.owner_cpu"], all["host.guests_cpu"], all["host.system_cpu"] = s.GetCpuOwner(), s.GetCpuGuests(), s.GetCpuSystem()
		all["host.cpu_pressure"], all["host.memory_pressure"], all["host.io_pressure"] =
			s.GetCpuPressure().GetSome(), s.GetMemoryPressure().GetSome(), s.GetIoPressure().GetSome()
	}
	owner := s.GetOwner()
	all["host.users"] = append([]string{}, owner.GetUsers()...)
	all["host.input_idle"], all["host.terminal_idle"] = idle(owner != nil && owner.InputIdle != nil, owner.GetInputIdle()),
		idle(owner != nil && owner.TerminalIdle != nil, owner.GetTerminalIdle())
	return all
}

func idle(known bool, seconds float64) time.Duration {
	if !known || !(seconds < never.Seconds()) {
		return never
	}
	return time.Duration(max(0, seconds) * float64(time.Second))
}
