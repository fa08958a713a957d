{{/* The chart's name, as a label. */}}
{{- define "resnetboost.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of all objects of a namespace; also the lease's, so that two releases are no replicas of each other. */}}
{{- define "resnetboost.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of objects of no namespace. Releases that serve some namespaces may have one name in several places; two
that serve all would fight over every job, and the equal name lets helm refuse the second. */}}
{{- define "resnetboost.clusterName" -}}
{{- if .Values.watchNamespaces -}}
{{- printf "%s-%s" .Release.Namespace (include "resnetboost.fullname" .) -}}
{{- else -}}
{{- include "resnetboost.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "resnetboost.serviceAccountName" -}}
{{- default (ternary (include "resnetboost.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* What pods of this release are found by; may never change. */}}
{{- define "resnetboost.selector" -}}
app.kubernetes.io/name: {{ include "resnetboost.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "resnetboost.labels" -}}
{{ include "resnetboost.labelsWith" (list . (dict)) }}
{{- end -}}

{{/* With further ones: list $ further. One key twice would be no YAML: the chart's own goes before further ones, and
those before commonLabels. */}}
{{- define "resnetboost.labelsWith" -}}
{{- $context := index . 0 -}}
{{- merge (include "resnetboost.ownLabels" $context | fromYaml) (index . 1) $context.Values.commonLabels | toYaml -}}
{{- end -}}

{{- define "resnetboost.ownLabels" -}}
{{ include "resnetboost.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* The operator's image, from the mirror if there is one. */}}
{{- define "resnetboost.image" -}}
{{- with .Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end -}}
{{- end -}}

{{/* "true" where a monitoring object is wanted: dict "context" $ "enabled" (auto, true or false) "kind" its kind. */}}
{{- define "resnetboost.monitored" -}}
{{- if eq (toString .enabled) "auto" -}}
{{- .context.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) | ternary "true" "" -}}
{{- else -}}
{{- if and .enabled (not (.context.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind))) (not (.context.Capabilities.APIVersions.Has "extensions/v1beta1")) -}}
{{- /* Without a cluster helm knows versions that are long gone, and asks nobody what there is: then it is believed. */ -}}
{{- $value := printf "monitoring.%s%s.enabled" (.kind | substr 0 1 | lower) (.kind | substr 1 -1) -}}
{{- fail (printf "%s is true, but the cluster does not know the kind %s: install the Prometheus operator, or set it to auto or false" $value .kind) -}}
{{- end -}}
{{- ternary "true" "" .enabled -}}
{{- end -}}
{{- end -}}

{{/* The rules of all roles of a kind, as {rules: [...]}: dict "context" $ "kind" Role or ClusterRole. Those of
files/rbac.yaml, and of files/rbac-*.yaml where their value says so. */}}
{{- define "resnetboost.rules" -}}
{{- $files := list "files/rbac.yaml" -}}
{{- if .context.Values.kueue.enabled }}{{ $files = append $files "files/rbac-kueue.yaml" }}{{ end -}}
{{- if .context.Values.nodeExclusion.taint }}{{ $files = append $files "files/rbac-taints.yaml" }}{{ end -}}
{{- if .context.Values.gangScheduling.enabled }}{{ $files = append $files "files/rbac-gangs.yaml" }}{{ end -}}
{{- $rules := list -}}
{{- range $file := $files -}}
{{- range splitList "\n---\n" ($.context.Files.Get $file) -}}
{{- $role := fromYaml . -}}
{{- if eq $role.kind $.kind }}{{ $rules = concat $rules $role.rules }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toYaml (dict "rules" $rules) -}}
{{- end -}}
