{{/* What the operator may do in the profiles' namespaces: no Secret is ever read there, and no node touched. */}}
{{- define "paceline.operatorRules" -}}
- apiGroups: [paceline.dev]
  resources: [inferenceprofiles]
  verbs: [get, list, watch]
- apiGroups: [paceline.dev]
  resources: [inferenceprofiles/status]
  verbs: [patch]
# Owner references that block the owner's deletion need it, where that is enforced.
- apiGroups: [paceline.dev]
  resources: [inferenceprofiles/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.monitoring.enabled }}
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
# Pods are made and deleted by their Deployments; the operator notes on each which settings it runs.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
# The engines' admin tokens: derived from the operator's key, written once.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}
