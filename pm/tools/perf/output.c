/*
 * output.c - the figures as a table, as CSV, and as a plot made by gnuplot.
 */
#include "perf.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

struct summary summarize(const struct samples *samples)
{
	size_t count = (size_t)samples->count;
	double *sorted = malloc(count * sizeof *sorted);
	if (!sorted)
		fail(-ENOMEM, "sort %zu figures", count);
	memcpy(sorted, samples->values, count * sizeof *sorted);
	qsort(sorted, count, sizeof *sorted, compare);
	struct summary summary = { (sorted[(count - 1) / 2] + sorted[count / 2]) / 2, sorted[0], sorted[count - 1] };
	free(sorted);
	return summary;
}

void print_table(const struct settings *settings, sample_table samples)
{
	printf("%-16s %10s  %9s %-21s  %9s %-19s\n", "curve", "bytes", "us", "(least..greatest)", "MB/s", "(least..greatest)");
	for (int curve = 0; curve < CURVES; curve++)
		for (int size = 0; size < settings->size_count; size++) {
			const struct samples *latency = &samples[curve][size][METRIC_LATENCY];
			const struct samples *bandwidth = &samples[curve][size][METRIC_BANDWIDTH];
			char spread[32];
			if (!latency->count)
				continue;
			struct summary summary = summarize(latency);
			snprintf(spread, sizeof spread, "(%.3f..%.3f)", summary.least, summary.greatest);
			printf("%-16s %10zu  %9.3f %-21s", curve_names[curve], settings->sizes[size], summary.median, spread);
			if (bandwidth->count) {
				summary = summarize(bandwidth);
				snprintf(spread, sizeof spread, "(%.0f..%.0f)", summary.least, summary.greatest);
				printf("  %9.0f %s", summary.median, spread);
			}
			putchar('\n');
		}
}

void write_csv(const struct settings *settings, sample_table samples, hit_table hits)
{
	bool to_stdout = strcmp(settings->csv, "-") == 0;
	FILE *file = to_stdout ? stdout : fopen(settings->csv, "w");
	if (!file)
		fail(-errno, "%s", settings->csv);
	fprintf(file, "curve,size,metric,unit,median,least,greatest,repetitions,hits\n");
	for (int curve = 0; curve < CURVES; curve++)
		for (int size = 0; size < settings->size_count; size++)
			for (int metric = 0; metric < METRICS; metric++) {
				const struct samples *taken = &samples[curve][size][metric];
				if (!taken->count)
					continue;
				struct summary summary = summarize(taken);
				fprintf(file, "%s,%zu,%s,%s,%.6g,%.6g,%.6g,%d,", curve_names[curve], settings->sizes[size],
					metric_names[metric], metric_units[metric], summary.median, summary.least, summary.greatest,
					taken->count);
				if (curve_hits(curve) >= 0)
					fprintf(file, "%.4g", hits[curve][size]);
				fputc('\n', file);
			}
	if (fflush(file) || ferror(file) || (!to_stdout && fclose(file)))
		fail(-errno, "%s", settings->csv);
}

static const char *terminal_for(const char *path)
{
	const char *ending = strrchr(path, '.');
	if (ending && strcmp(ending, ".svg") == 0)
		return "svg size 1200,560 dynamic background rgb 'white'";
	if (ending && strcmp(ending, ".png") == 0)
		return "pngcairo size 1200,560";
	return NULL;
}

void check_plot(const char *path)
{
	if (!terminal_for(path))
		fail(0, "%s: a plot's name ends in .svg or .png", path);
	if (strchr(path, '\'') || strchr(path, '\n'))
		fail(0, "%s: gnuplot takes no such name", path);
	if (system("command -v gnuplot >/dev/null") != 0)
		fail(0, "gnuplot is not installed, which makes the plot (Debian package gnuplot-nox)");
}

static bool has_metric(const struct settings *settings, sample_table samples, int curve, int metric)
{
	for (int size = 0; size < settings->size_count; size++)
		if (samples[curve][size][metric].count)
			return true;
	return false;
}

static void plot_panel(FILE *gnuplot, const struct settings *settings, sample_table samples, int metric)
{
	const char *separator = "plot ";
	for (int curve = 0; curve < CURVES; curve++) {
		if (!has_metric(settings, samples, curve, metric))
			continue;
		fprintf(gnuplot, "$data%d_%d << END\n", metric, curve);
		for (int size = 0; size < settings->size_count; size++)
			if (samples[curve][size][metric].count) {
				struct summary summary = summarize(&samples[curve][size][metric]);
				fprintf(gnuplot, "%zu %g %g %g\n", settings->sizes[size], summary.median, summary.least, summary.greatest);
			}
		fprintf(gnuplot, "END\n");
	}
	fprintf(gnuplot, "set title '%s'\nset ylabel '%s'\n",
		metric == METRIC_LATENCY ? "Time of one (median; bars: least to greatest)" : "Bandwidth (median; bars: least to greatest)",
		metric == METRIC_LATENCY ? "{/Symbol m}s" : "MB/s");
	for (int curve = 0; curve < CURVES; curve++) {
		if (!has_metric(settings, samples, curve, metric))
			continue;
		fprintf(gnuplot, "%s$data%d_%d using 1:2:3:4 with yerrorlines linetype %d linewidth 1.5 pointsize 0.5 title '%s'", separator, metric, curve,
			curve + 1, curve_names[curve]);
		separator = ", ";
	}
	fprintf(gnuplot, "\n");
}

void write_plot(const struct settings *settings, sample_table samples)
{
	signal(SIGPIPE, SIG_IGN);
	FILE *gnuplot = popen("gnuplot", "w");
	if (!gnuplot)
		fail(-errno, "start gnuplot");
	fprintf(gnuplot, "set terminal %s\nset output '%s'\n", terminal_for(settings->plot), settings->plot);
	fprintf(gnuplot, "set multiplot layout 1,2 title 'PM %s between two processes'\n", pm_version());
	fprintf(gnuplot, "set logscale xy\nset grid\nset key below reverse Left\nset xlabel 'bytes'\nset format x '%%.0s%%c'\n");
	for (int metric = 0; metric < METRICS; metric++) {
		bool any = false;
		for (int curve = 0; curve < CURVES; curve++)
			any |= has_metric(settings, samples, curve, metric);
		if (any)
			plot_panel(gnuplot, settings, samples, metric);
	}
	int status = pclose(gnuplot);
	if (status != 0)
		fail(0, "gnuplot could not make %s", settings->plot);
}
