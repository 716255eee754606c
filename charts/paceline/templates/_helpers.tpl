{{/* The base of every name, at most 50 characters, so that a part's suffix fits into a DNS label. */}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "paceline.operatorName" -}}{{ include "paceline.fullname" . }}-operator{{- end }}
{{- define "paceline.apiName" -}}{{ include "paceline.fullname" . }}-api{{- end }}

{{/* Labels that never change while a release lives. Arguments: root context, component. */}}
{{- define "paceline.selectorLabels" -}}
app.kubernetes.io/name: paceline
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* All labels of an object. Arguments: root context, component. */}}
{{- define "paceline.labels" -}}
{{ include "paceline.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A tag as text: a number from a values file arrives as a float, and 20161216 must not become 2.0161216e+07. */}}
{{- define "paceline.tag" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* An image's reference. Arguments: root context, image (repository, tag, digest). */}}
{{- define "paceline.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ include "paceline.tag" (.image.tag | default .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* The names of the registry's Secrets as a JSON list: this chart's own and those of a chart around it. */}}
{{- define "paceline.pullSecretNames" -}}
{{- $names := list }}
{{- range concat .Values.imagePullSecrets (dig "imagePullSecrets" list (.Values.global | default dict)) }}
{{- $names = append $names (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name")) }}
{{- end }}
{{- toJson (uniq $names) }}
{{- end }}

{{/* The pods' imagePullSecrets field. */}}
{{- define "paceline.imagePullSecrets" -}}
{{- with include "paceline.pullSecretNames" . | fromJsonArray }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A map as YAML without the fields that are null. */}}
{{- define "paceline.withoutNulls" -}}
{{- $kept := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}{{- $_ := set $kept $key $value }}{{- end }}
{{- end }}
{{- toYaml $kept }}
{{- end }}

{{/* What all pods of the chart have in common. */}}
{{- define "paceline.podDefaults" -}}
{{- include "paceline.imagePullSecrets" . }}
# A Service called paceline-api would set PACELINE_API_PORT, which is a setting of ours.
enableServiceLinks: false
securityContext:
  {{- include "paceline.withoutNulls" .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{/* Where pods go. Argument: the component's values. */}}
{{- define "paceline.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* The environment of both programs, whatever user id the cluster gives them. */}}
{{- define "paceline.environment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: HOME
  value: /tmp
{{- end }}

{{/* The name of the Secret with the admin key. */}}
{{- define "paceline.adminKeySecret" -}}
{{ .Values.adminKey.existingSecret | default (printf "%s-admin-key" (include "paceline.fullname" .)) }}
{{- end }}
