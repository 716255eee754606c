{{/* The operator's configuration file; operator/config.py describes it. */}}
{{- define "paceline.operatorConfig" -}}
engine:
  images:
    CPU: {{ include "paceline.image" (dict "root" . "image" .Values.engine.images.cpu) | quote }}
    NVIDIA: {{ include "paceline.image" (dict "root" . "image" .Values.engine.images.nvidia) | quote }}
  imagePullSecrets: {{ include "paceline.pullSecretNames" . }}
  allowedFileFolders: {{ toJson .Values.engine.modelFolders }}
  # null: left to the cluster.
  {{- range $field := list "runAsUser" "fsGroup" }}
  {{- $id := get $.Values.engine.securityContext $field }}
  {{ $field }}: {{ empty $id | ternary "null" (int64 $id | toString) }}
  {{- end }}
  networkPolicy: {{ .Values.networkPolicy.enabled }}
  adminClients:
    {{- range $component := list "operator" "api" }}
    - namespace: {{ $.Release.Namespace }}
      labels:
        {{- include "paceline.selectorLabels" (dict "root" $ "component" $component) | nindent 8 }}
    {{- end }}
  podMonitor: {{ .Values.monitoring.enabled }}
  {{- with .Values.testing.engineHostMounts }}
  hostMounts: {{ toJson . }}
  {{- end }}
lease:
  namespace: {{ .Release.Namespace }}
  name: {{ include "paceline.operatorName" . }}
watch:
  namespaces: {{ toJson .Values.watchNamespaces }}
httpPort: 8080
tokenSecret: {{ include "paceline.adminKeySecret" . }}
{{- end }}
