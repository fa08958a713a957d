// Only its files are wanted (example/prometheus-operator-crd), so nothing of what it imports is named here: no `go mod tidy`.
module resnetboost/tools/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
