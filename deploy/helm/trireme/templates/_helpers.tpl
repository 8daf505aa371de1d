{{- define "trireme.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "trireme.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trireme.labels" -}}
{{ include "trireme.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "trireme.account" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "trireme.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "trireme.gateway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trireme.gateway.labels" -}}
{{ include "trireme.gateway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "trireme.fleet" -}}
[gateway]
{{- range $key, $value := .Values.gateway.settings }}
{{ $key }} = {{ toJson $value }}
{{- end }}

[connection]
{{- range $key, $value := .Values.gateway.connection }}
{{ $key }} = {{ toJson $value }}
{{- end }}

[kubernetes]
service = "{{ include "trireme.name" . }}-replicas"
namespace = "{{ .Release.Namespace }}"
port = "grpc"

[kubernetes.weights]
{{- range $key, $value := .Values.gateway.weights }}
{{ toJson $key }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{- define "trireme.ingress" -}}
- ports:
    - { port: http, protocol: TCP }
    - { port: grpc, protocol: TCP }
  from:
    {{- with .Values.networkPolicy.clients }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - podSelector: {}
    {{- end }}
- ports:
    - { port: metrics, protocol: TCP }
  from:
    {{- with .Values.networkPolicy.scrapers }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - namespaceSelector: {}
    {{- end }}
{{- end }}
